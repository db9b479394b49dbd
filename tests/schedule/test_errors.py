"""What a user can get wrong: one line that names the field, the value and the fix."""

import re
from collections.abc import Callable

import pytest

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle, ShortCycle
from vcycle.schedule.multigrid import Multigrid
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


CASES: list[tuple[Callable[[], object], str]] = [
    (lambda: LearningRate(0.0), "learning rate 0.0: give a positive number"),
    (lambda: LearningRate(float("nan")), "learning rate nan: give a positive number"),
    (lambda: LearningRate(1, decay="exp"), "decay 'exp': choose step, cosine or one-cycle"),  # type: ignore[arg-type]
    (lambda: LearningRate(1, gamma=0), "gamma 0: give a factor above 0 and at most 1"),
    (lambda: LearningRate(1, final=2), "final 2: give a share of the base rate, from 0 to 1"),
    (lambda: LearningRate(1, rise=1), "rise 1: give a share of the run between 0 and 1"),
    (lambda: LearningRate(1, warmup_steps=-1), "warmup_steps -1: give 0 for none, or more"),
    (lambda: LearningRate(1, warmup_start=-1), "warmup_start -1: give a rate of 0 or more"),
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
    (lambda: ShapeRule(side_multiple=0), "side_multiple 0: give a number of at least 1"),
    (lambda: Multigrid(epoch_factor=0), "epoch_factor 0: give a positive number"),
    (lambda: Multigrid(steps=0), "steps 0: give a number of at least 1"),
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
        "batch size that is a multiple of 8, a smaller group, or null for a model without batch "
        "norm",
    ),
    (
        lambda: Plan(baseline(), Multigrid(epoch_factor=0.05)),
        "steps 10: none is left for 2x45x45 in learning-rate stage 2 of 3; use a larger epoch "
        "factor or more steps, fewer long-cycle shapes, or a larger share for it",
    ),
    (
        lambda: Plan(baseline(), Multigrid.off(steps=2)),
        "steps 2: none is left for 8x64x64 in learning-rate stage 3 of 3; use a larger epoch "
        "factor or more steps, fewer long-cycle shapes, or a larger share for it",
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
