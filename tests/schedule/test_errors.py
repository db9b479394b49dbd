"""What a user can get wrong: one line that names the field, the value and the fix."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle, ShortCycle
from vcycle.schedule.multigrid import Anneal, Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape, ShapeRule


def baseline(
    *,
    shape: Shape = Shape(8, 64, 64),
    batch_size: int = 8,
    steps: int = 1000,
    num_videos: int = 100,
    rate: LearningRate = LearningRate(0.1),
    stage_ends: tuple[int, ...] = (500, 800),
) -> Baseline:
    return Baseline(shape, batch_size, steps, num_videos, rate, stage_ends)


SHORT_CYCLE_OF_12 = Multigrid(
    LongCycle(((1, 0.5), (1, 1)), batch_factors=(4, 2)), ShortCycle(((0.66, 1),))
)
"""Of base batches that groups of 8 divide."""
CASES: list[tuple[Callable[[], object], str]] = [
    (lambda: LearningRate(0.0), "learning rate 0.0: give a positive number"),
    (lambda: LearningRate(float("nan")), "learning rate nan: give a positive number"),
    (lambda: LearningRate(1, decay="exp"), "decay 'exp': choose step, cosine or one-cycle"),  # type: ignore[arg-type]
    (lambda: LearningRate(1, gamma=0), "gamma 0: give a factor above 0 and at most 1"),
    (lambda: LearningRate(1, final=2), "final 2: give a share of the base rate, from 0 to 1"),
    (lambda: LearningRate(1, rise=1), "rise 1: give a share of the run between 0 and 1"),
    (
        lambda: LearningRate(1, warmup_steps=-1),
        "warmup_steps -1: give a whole number of steps, 0 for none",
    ),
    (lambda: LearningRate(1, warmup_start=-1), "warmup_start -1: give a rate of 0 or more"),
    (
        lambda: LearningRate(0.1, warmup_steps=2, warmup_start=0.5),
        "warmup_start 0.5: the rate rises from it to 0.1; give no more than that",
    ),
    (
        lambda: LearningRate(1, decay="one-cycle", warmup_steps=5),
        "warmup_steps 5: a one-cycle rate has its own rise; use 0",
    ),
    (lambda: baseline(batch_size=0), "batch_size 0: give a whole number of at least 1"),
    (lambda: baseline(steps=1.5), "steps 1.5: give a whole number of at least 1"),  # type: ignore[arg-type]
    (lambda: baseline(num_videos=0), "num_videos 0: give a whole number of at least 1"),
    (
        lambda: baseline(stage_ends=(800, 500)),
        "stage_ends [800, 500]: give rising steps between 1 and 999, the steps at which the "
        "learning rate drops",
    ),
    (
        lambda: baseline(rate=LearningRate(1, warmup_steps=1000)),
        "warmup_steps 1000: the run has 1000 steps; use fewer",
    ),
    (
        lambda: LongCycle(((0.5, 1.0),)),
        "long_cycle.factors [[0.5, 1]]: a run ends on the full grid; make [1, 1] the last",
    ),
    (
        lambda: LongCycle(()),
        "long_cycle.factors []: a run ends on the full grid; make [1, 1] the last",
    ),
    (
        lambda: LongCycle(((0.5, 0.5, 0.5), (1.0, 1.0))),  # type: ignore[arg-type]
        "long_cycle.factors [0.5, 0.5, 0.5]: give one for the frames and one for the height and "
        "width, each above 0 and at most 1",
    ),
    (
        lambda: LongCycle(((1.5, 1.0), (1.0, 1.0))),
        "long_cycle.factors [1.5, 1]: give one for the frames and one for the height and width, "
        "each above 0 and at most 1",
    ),
    (
        lambda: ShortCycle(((1.0, 0.0),)),
        "short_cycle.factors [1, 0]: give one for the frames and one for the height and "
        "width, each above 0 and at most 1",
    ),
    (lambda: LongCycle().last(5), "long-cycle shapes 5: choose 1 to 4, the shapes of this cycle"),
    (lambda: ShortCycle().last(0), "short-cycle shapes 0: choose 1 to 3, the shapes of this cycle"),
    (lambda: ShapeRule(side_multiple=0), "side_multiple 0: give a whole number of at least 1"),
    (
        lambda: Plan(baseline(rate=LearningRate(1e308)), Multigrid()),
        "learning rate 1e+308: 8 times as much, on a coarse shape, is too large for a number; "
        "give a lower one",
    ),
    (lambda: Multigrid(epoch_factor=0), "epoch_factor 0: give a positive number"),
    (lambda: Multigrid(steps=0), "steps 0: give a whole number of at least 1"),
    (lambda: Multigrid(norm_group=0), "norm_group 0: give at least 1 clip, or none"),
    (lambda: Multigrid(batch_exponent=1.5), "batch_exponent 1.5: give a number from 0 to 1"),
    (lambda: Multigrid(rate_exponent=-1), "rate_exponent -1: give a number from 0 to 1"),
    (
        lambda: Plan(baseline(stage_ends=()), Multigrid()),
        "fine_tuning true: it takes the last learning-rate stage and this baseline has only one; "
        "give baseline.stage_ends, or false",
    ),
    (
        lambda: Plan(baseline(batch_size=12), Multigrid()),
        "norm_group 8: groups of 8 clips do not divide the batch of 12 clips at 8x64x64; use a "
        "batch size that is a multiple of 8, a smaller group, or none (null) for a model "
        "without batch norm",
    ),
    (
        lambda: Plan(baseline(batch_size=4), SHORT_CYCLE_OF_12),
        "norm_group 8: groups of 8 clips do not divide the batch of 12 clips at 5x64x64; use a "
        "batch size that is a multiple of 8, a smaller group, or none (null) for a model "
        "without batch norm",
    ),
    (
        lambda: Plan(baseline(), Multigrid(epoch_factor=0.05)),
        "epoch_factor 0.05 of baseline.steps 1000: none of the plan's is left for 2x45x45 in "
        "learning-rate stage 2 of 3; give more, such as an epoch_factor of 0.071, or "
        "fewer long-cycle shapes, or a larger share for it",
    ),
    (
        lambda: Plan(baseline(), Multigrid.off(steps=2)),
        "steps 2: none of the plan's is left for 8x64x64 in learning-rate stage 3 of 3; "
        "give more, such as 4",
    ),
    (
        lambda: Plan(baseline(shape=Shape(2, 64, 64)), Multigrid()),
        "frames 2 x 0.25 is 0.5, and the model takes at least 1; start from more frames, or leave "
        "that factor out of the cycle",
    ),
    (
        lambda: Plan(baseline(), Multigrid(rule=ShapeRule(min_side=40))),
        "height 64 x 0.5 is 32, and the model takes at least 40; start from more height, or leave "
        "that factor out of the cycle",
    ),
    (
        lambda: Plan(baseline(), Multigrid(rule=ShapeRule(frame_multiple=3))),
        "frames 8: the model takes multiples of 3; use 9",
    ),
]


@pytest.mark.parametrize(("action", "message"), CASES)
def test_message(action: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        action()


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (lambda: baseline(batch_size="8"), ValueError, "batch_size '8': give a whole number"),
        (lambda: baseline(steps=True), ValueError, "steps True: give a whole number"),
        (lambda: Shape(8.0, 64, 64), ValueError, "frames 8.0: give a whole number"),  # type: ignore[arg-type]
        (lambda: baseline(stage_ends=(240.5, 480)), ValueError, "stage_ends 240.5: give rising st"),
        (lambda: baseline(stage_ends=240), TypeError, "stage_ends 240: give a tuple, such as (40"),
        (lambda: baseline(shape="8x64x64"), TypeError, "shape '8x64x64': give a vcycle.Shape, "),
        (lambda: baseline(rate=0.1), TypeError, "learning_rate 0.1: give a vcycle.LearningRate, "),
        (lambda: LearningRate("0.1"), TypeError, "base '0.1': give a number"),  # type: ignore[arg-type]
        (lambda: LearningRate(True), TypeError, "base True: give a number"),
        (lambda: LearningRate(1, gamma=None), TypeError, "gamma None: give a number"),  # type: ignore[arg-type]
        (
            lambda: LearningRate(1, warmup_steps=2.5),
            ValueError,
            "warmup_steps 2.5: give a whole number",
        ),  # type: ignore[arg-type]
        (
            lambda: Multigrid(fine_tuning="false"),
            TypeError,
            "fine_tuning 'false': give True or Fal",
        ),  # type: ignore[arg-type]
        (lambda: LongCycle(once="no"), TypeError, "long_cycle.once 'no': give True or False"),  # type: ignore[arg-type]
        (lambda: Plan(baseline(), Multigrid())[1.5], TypeError, "step 1.5: give a whole number"),  # type: ignore[call-overload]
        (lambda: Multigrid(epoch_factor="2"), TypeError, "epoch_factor '2': give a number"),  # type: ignore[arg-type]
        (lambda: Multigrid(rate_exponent=None), TypeError, "rate_exponent None: give a number"),  # type: ignore[arg-type]
        (lambda: Plan(baseline(), "anneal"), TypeError, "multigrid 'anneal': give a vcycle.Multi"),
        (lambda: Plan(Multigrid(), baseline()), TypeError, "baseline Multigrid("),
        (lambda: Multigrid(anneal="linear"), TypeError, "anneal 'linear': give a vcycle.Anneal, "),
        (lambda: Multigrid(rule=(2, 16)), TypeError, "rule (2, 16): give a vcycle.ShapeRule, "),
        (lambda: Multigrid(long_cycle=((1, 1),)), TypeError, "long_cycle ((1, 1),): give a vcyc"),
        (lambda: Multigrid(steps=10.5), ValueError, "steps 10.5: give a whole number of at least"),
        (lambda: Multigrid(norm_group=2.0), ValueError, "norm_group 2.0: give at least 1 clip"),
        (lambda: Multigrid.named(None), ValueError, "schedule None: choose paper, pass, anneal,"),
        (lambda: LongCycle(shares=(0.5, "a")), TypeError, "long_cycle.shares (0.5, 'a'): give a"),
        (lambda: LongCycle((("a", 1), (1, 1))), TypeError, "long_cycle.factors (('a', 1), (1, 1)"),
        (lambda: Anneal(share="0.4"), TypeError, "anneal.share '0.4': give a number"),
        (lambda: Anneal(final=None), TypeError, "anneal.final None: give a number"),
        (lambda: LongCycle(shares=0.5), TypeError, "long_cycle.shares 0.5: give a tuple, such"),
        (lambda: LongCycle((0.5, 1)), ValueError, "long_cycle.factors 0.5: give one for the fr"),
        (
            lambda: ShortCycle((1, 0.5)),
            ValueError,
            "short_cycle.factors 1: give one for the frames",
        ),
        (lambda: ShapeRule(1.5), ValueError, "frame_multiple 1.5: give a whole number of at least"),
        (lambda: Shape.parse(8), TypeError, "shape 8: give text, such as '16x224x224'"),
    ],
)
def test_what_is_no_such_type_is_named(
    action: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        action()


def test_lists_and_numpys_numbers_are_those_that_a_plan_keeps() -> None:
    """So that a plan made of them may be hashed, compared and sent, as a batch's step is."""
    made = Plan(
        Baseline(
            shape=Shape(8, 64, 64),
            batch_size=np.int64(8),  # type: ignore[arg-type]
            steps=1000,
            num_videos=np.int32(100),  # type: ignore[arg-type]
            learning_rate=LearningRate(np.float64(0.1)),
            stage_ends=[np.int64(500), 800],  # type: ignore[arg-type, list-item]
        ),
        Multigrid(
            long_cycle=LongCycle([[0.5, 0.5], [1.0, 1.0]], shares=[0.5, 0.5]),  # type: ignore[arg-type]
            rate_exponent=np.float32(1),  # type: ignore[arg-type]
            anneal=Anneal(warmup=np.float32(0.5)),  # type: ignore[arg-type]
        ),
    )
    assert type(made[0].learning_rate) is float
    json.dumps(made.to_dict())
    cycle = LongCycle(((0.5, 0.5), (1.0, 1.0)), shares=(0.5, 0.5))
    plain = Plan(baseline(), Multigrid(long_cycle=cycle, anneal=Anneal(warmup=0.5)))
    assert (made, hash(made.baseline)) == (plain, hash(plain.baseline))
    assert hash(made.multigrid) == hash(plain.multigrid)


@given(st.integers(1, 40), st.sampled_from(["paper", "pass", "off"]))
def test_what_is_named_where_steps_are_few_suffices(steps: int, name: str) -> None:
    """More than was given, though more need not suffice everywhere: shares are rounded."""
    multigrid = replace(Multigrid.named(name), steps=steps)
    try:
        Plan(baseline(), multigrid)
    except ValueError as error:
        (more,) = re.findall(r"such as (\d+)", str(error))
        assert int(more) > steps
        assert len(Plan(baseline(), replace(multigrid, steps=int(more)))) == int(more)


def test_an_epoch_factor_that_is_named_suffices() -> None:
    with pytest.raises(ValueError, match=r"epoch_factor 0\.05 of") as refused:
        Plan(baseline(), Multigrid(epoch_factor=0.05))
    (factor,) = re.findall(r"epoch_factor of ([\d.]+), or", str(refused.value))
    assert len(Plan(baseline(), Multigrid(epoch_factor=float(factor)))) > 10


def test_steps_of_other_kinds_of_numbers_are_those_of_whole_ones() -> None:
    """They are not changed, and count no further than int32."""
    plan = Plan(baseline(batch_size=2**24), Multigrid())
    for kind in (np.int16, np.uint32, np.int64, lambda step: torch.tensor(step, dtype=torch.int32)):
        for step in (1, len(plan) - 1):
            given = kind(step)
            assert plan[given] == plan[step]
            assert type(plan[given].index) is type(plan[given].first_sample) is int
            assert plan.first_sample(given) == plan.first_sample(step)
            assert plan.mini_batches(first_step=given) == plan.mini_batches(first_step=step)
            assert int(given) == step
    last = torch.tensor(-1)
    assert plan[last] == plan[-1]
    assert last == -1
    assert type(Multigrid(fine_tuning=np.bool_(True)).fine_tuning) is bool
    with pytest.raises(ValueError, match="num_videos"):
        replace(baseline(), num_videos=torch.tensor(True))
