"""The named schedules: golden plans, their rates, and what a user can get wrong about them."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import SQRT_HALF, LongCycle, ShortCycle
from vcycle.schedule.multigrid import COARSE_TO_FINE, SCHEDULES, Anneal, Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape, ShapeRule

KINETICS = Baseline(
    Shape(32, 224, 224),
    512,
    112_000,
    240_000,
    LearningRate(0.8, warmup_steps=16_000, warmup_start=0.002),
    (44_000, 72_000, 92_000),
)
SMALL = Baseline(
    Shape(8, 96, 96), 8, 1_500, 275, LearningRate(0.012, warmup_steps=75), (1_050, 1_350)
)

Row = tuple[str, int, int, int]


def rows(plan: Plan) -> list[Row]:
    """(shape, batch, steps, stage) of every phase."""
    return [(str(p.base.shape), p.base.batch_size, p.steps, p.stage) for p in plan.phases]


@pytest.mark.parametrize(
    ("name", "baseline", "steps", "golden"),
    [
        (
            "pass",
            KINETICS,
            None,
            [
                ("8x112x112", 8_192, 20_851, 0),
                ("16x158x158", 2_048, 12_511, 0),
                ("32x224x224", 512, 8_340, 0),
            ],
        ),
        (
            "anneal",
            KINETICS,
            None,
            [
                ("8x112x112", 8_192, 18_936, 0),
                ("16x158x158", 2_048, 12_625, 0),
                ("32x224x224", 512, 10_523, 0),
            ],
        ),
        (
            "off",
            KINETICS,
            None,
            [
                ("32x224x224", 512, 44_000, 0),
                ("32x224x224", 512, 28_000, 1),
                ("32x224x224", 512, 20_000, 2),
                ("32x224x224", 512, 20_000, 3),
            ],
        ),
        (
            "pass",
            SMALL,
            276,
            [("2x48x48", 128, 138, 0), ("4x68x68", 32, 83, 0), ("8x96x96", 8, 55, 0)],
        ),
        (
            "anneal",
            SMALL,
            276,
            [("2x48x48", 128, 124, 0), ("4x68x68", 32, 83, 0), ("8x96x96", 8, 69, 0)],
        ),
        (
            "paper",
            SMALL,
            276,
            [
                *[("2x68x68", 64, 48, 0), ("4x68x68", 32, 48, 0)],
                *[("4x96x96", 16, 48, 0), ("8x96x96", 8, 49, 0)],
                *[("2x68x68", 64, 13, 1), ("4x68x68", 32, 14, 1)],
                *[("4x96x96", 16, 14, 1), ("8x96x96", 8, 14, 1)],
                *[("8x96x96", 8, 14, 2), ("8x96x96", 8, 14, 2)],
            ],
        ),
    ],
)
def test_golden_plans(name: str, baseline: Baseline, steps: int | None, golden: list[Row]) -> None:
    plan = Plan(baseline, replace(Multigrid.named(name), steps=steps))
    assert rows(plan) == golden
    assert len(plan) == (steps or sum(row[2] for row in golden))
    if steps is None:
        target = {"off": 1.0, "pass": 3.5, "anneal": 3.25}[name] * baseline.num_clips
        assert abs(plan.num_clips - target) <= baseline.batch_size


def test_the_named_schedules_are_values() -> None:
    assert list(SCHEDULES) == ["paper", "pass", "anneal", "off"]
    assert Multigrid.named("paper") == Multigrid()
    assert Multigrid.named("off") == Multigrid.off()
    one_pass, anneal = Multigrid.named("pass"), Multigrid.named("anneal")
    # The two differ in shares and rate alone, and in the epochs of as many steps.
    alike = {"long_cycle": anneal.long_cycle, "anneal": anneal.anneal, "epoch_factor": 3.25}
    assert replace(one_pass, **alike) == anneal
    for named, factor in ((one_pass, 3.5), (anneal, 3.25)):
        assert len(Plan(KINETICS, named)) == pytest.approx(3 / 8 * KINETICS.steps, rel=0.01)
        assert named.long_cycle is not None
        assert named.long_cycle.factors == COARSE_TO_FINE == ((0.25, 0.5), (0.5, 0.5**0.5), (1, 1))
        assert (named.short_cycle, named.fine_tuning, named.epoch_factor) == (None, False, factor)
    with pytest.raises(
        ValueError,
        match=r"^schedule 'aneal': choose paper, pass, anneal, off; did you mean anneal\?$",
    ):
        Multigrid.named("aneal")


@pytest.mark.parametrize("name", ["paper", "pass", "anneal", "off"])
def test_a_phase_is_listed_with_the_rates_of_its_first_and_last_step(name: str) -> None:
    plan = Plan(KINETICS, Multigrid.named(name))
    for phase in plan.to_dict()["phases"]:
        for step, rate in (("first_step", "learning_rate"), ("last_step", "last_learning_rate")):
            if phase[step] >= plan.warmup_steps:
                assert phase[rate] == plan[phase[step]].learning_rate


def test_another_schedule_for_the_same_model_and_data() -> None:
    rule = ShapeRule(frame_multiple=2, side_multiple=16)
    mine = Multigrid(
        epoch_factor=1.0, norm_group=4, batch_exponent=0.5, rate_exponent=0.5, rule=rule
    )
    chosen = mine.with_schedule("pass")
    assert (chosen.long_cycle, chosen.anneal) == (SCHEDULES["pass"].long_cycle, Anneal("cosine", 1))
    for field in ("norm_group", "batch_exponent", "rate_exponent", "rule", "steps"):
        assert getattr(chosen, field) == getattr(mine, field)
    # Each takes epochs of its own.
    assert chosen.epoch_factor == 3.5
    assert chosen.with_schedule("paper") == replace(mine, epoch_factor=1.5)
    for name in ("paper", "anneal", "off"):
        assert replace(mine, steps=70).with_schedule(name).steps == 70
    # A single pass's steps are few for anything but another.
    steps = {name: replace(chosen, steps=70).with_schedule(name).steps for name in SCHEDULES}
    assert steps == {"paper": None, "pass": 70, "anneal": 70, "off": None}
    # A baseline's epochs are its own; a schedule put in its place has the named one's.
    assert mine.with_schedule("off").epoch_factor == 1.0
    assert Multigrid(epoch_factor=2.0).with_schedule("off").epoch_factor == 1.0
    assert Multigrid.off().with_schedule("pass") == Multigrid.named("pass")
    off = Plan(SMALL, Multigrid(norm_group=4, batch_exponent=0.5).with_schedule("off"))
    assert off.phases == Plan(SMALL, Multigrid.off(norm_group=4)).phases
    assert [step.learning_rate for step in off[::50]] == pytest.approx(
        [step.learning_rate for step in Plan(SMALL, Multigrid.off())[::50]]
    )


def test_the_rate_of_a_pass_is_one_cosine_times_the_factor_of_the_phase() -> None:
    plan = Plan(SMALL, replace(Multigrid.named("pass"), steps=276, rate_exponent=0.5))
    assert plan.warmup_steps == 28  # a tenth of the steps
    factors = {"2x48x48": 4.0, "4x68x68": 2.0, "8x96x96": 1.0}
    for step in plan[28:]:
        cosine = 0.012 * (1 + math.cos(math.pi * step.index / 276)) / 2
        assert step.learning_rate == pytest.approx(cosine * factors[str(step.shape)])
    peak = plan[28].learning_rate
    assert [step.learning_rate for step in plan[:28]] == pytest.approx(
        [peak * i / 28 for i in range(28)]
    )


def test_an_anneal_is_constant_until_the_full_grid_and_then_a_line_to_zero() -> None:
    plan = Plan(SMALL, replace(Multigrid.named("anneal"), steps=276))
    first = plan.phases[-1].first_step
    assert first == 207
    coarse = {(str(step.shape), step.learning_rate) for step in plan[28:first]}
    assert coarse == {("2x48x48", 16 * 0.012), ("4x68x68", 4 * 0.012)}
    rates = [step.learning_rate for step in plan[first:]]
    assert rates == pytest.approx([0.012 * (1 - i / 69) for i in range(69)])


@pytest.mark.parametrize(
    ("anneal", "rates"),
    [
        (Anneal("linear", 0.4), [1, 1, 1, 1, 0.5, 0.25]),
        (Anneal("cosine", 0.4), [1, 1, 1, 1, 0.5, (1 - math.sqrt(0.5)) / 2]),
        (Anneal("linear", 1.0, final=0.2), [1, 0.8, 0.52, 0.52, 0.36, 0.28]),
    ],
)
def test_the_start_and_the_form_of_an_anneal(anneal: Anneal, rates: list[float]) -> None:
    places = [0, 0.25, 0.6, 0.6, 0.8, 0.9]
    start = 1 - (anneal.share or 0)
    assert [anneal.at(place, start=start) for place in places] == pytest.approx(rates)
    plan = Plan(SMALL, replace(Multigrid.off(steps=1000), anneal=anneal))
    assert [plan[int(1000 * place)].learning_rate for place in places[1:]] == pytest.approx(
        [0.012 * rate for rate in rates[1:]]
    )
    assert {phase.kind for phase in plan.phases} == {"constant"}


def test_factors_of_batch_and_rate() -> None:
    cycle = LongCycle(
        COARSE_TO_FINE,
        (0.5, 0.2, 0.3),
        batch_factors=(6, 3, 2),
        rate_factors=(2, 1.5, 1),
        once=True,
    )
    plan = Plan(SMALL, replace(Multigrid.named("anneal"), long_cycle=cycle, steps=300))
    assert [row[1] for row in rows(plan)] == [48, 24, 16]
    assert {(str(s.shape), s.norm_group) for s in plan} == {
        ("2x48x48", 8),
        ("4x68x68", 8),
        ("8x96x96", 8),
    }
    firsts = [plan[step].learning_rate for step in (40, 150, 210)]
    assert firsts == pytest.approx([0.024, 0.018, 0.012])
    # The short cycle goes on from a given batch by equation 1, and its norm groups with it.
    short = replace(plan.multigrid, short_cycle=ShortCycle(((1.0, 0.5),)))
    fine = Plan(SMALL, short).phases[-1].base.short_cycle
    assert [(str(s.shape), s.batch_size, s.norm_group) for s in fine] == [
        ("8x48x48", 64, 32),
        ("8x96x96", 16, 8),
    ]


def test_progressive_resizing_keeps_batch_and_rate() -> None:
    plan = Plan(SMALL, Multigrid.progressive_resizing())
    assert len(plan) == SMALL.steps
    assert rows(plan) == [
        ("8x48x48", 8, 500, 0),
        ("8x68x68", 8, 500, 0),
        ("8x96x96", 8, 50, 0),
        ("8x96x96", 8, 300, 1),
        ("8x96x96", 8, 150, 2),
    ]
    same = Plan(SMALL, Multigrid.off())
    assert [step.learning_rate for step in plan] == [step.learning_rate for step in same]


def test_a_pass_goes_on_over_the_drops_of_a_step_rate() -> None:
    """Phases are cut at a drop, and only there."""
    multigrid = replace(Multigrid.named("pass"), anneal=None, steps=1_000)
    assert rows(Plan(SMALL, multigrid)) == [
        ("2x48x48", 128, 500, 0),
        ("4x68x68", 32, 200, 0),
        ("4x68x68", 32, 100, 1),
        ("8x96x96", 8, 100, 1),
        ("8x96x96", 8, 100, 2),
    ]
    smooth = replace(SMALL, learning_rate=LearningRate(0.012, decay="cosine"))
    assert [row[2] for row in rows(Plan(smooth, multigrid))] == [500, 300, 200]


def test_shares_of_a_cycle_in_every_stage() -> None:
    cycle = LongCycle(((0.5, 0.5), (1.0, 1.0)), (0.75, 0.25))
    plan = Plan(SMALL, Multigrid(long_cycle=cycle, steps=400))
    assert [(row[0], row[2]) for row in rows(plan)] == [
        *[("4x48x48", 210), ("8x96x96", 70)],
        *[("4x48x48", 60), ("8x96x96", 20)],
        *[("8x96x96", 20), ("8x96x96", 20)],
    ]


def test_fewer_shapes_keep_their_proportions() -> None:
    cycle = LongCycle(COARSE_TO_FINE, (0.5, 0.3, 0.2), (6, 3, 2), (3.0, 2.0, 1.0), once=True)
    assert cycle.last(3) == cycle
    last = cycle.last(2)
    assert last.shares == pytest.approx((0.6, 0.4))
    assert (last.factors, last.batch_factors, last.rate_factors, last.once) == (
        COARSE_TO_FINE[1:],
        (3, 2),
        (2.0, 1.0),
        True,
    )
    assert LongCycle().last(2).shares is None


@pytest.mark.parametrize(
    ("shares", "weights"),
    [
        ((0.5, 0.3, 0.2), (5, 3, 2)),
        ((0.45, 0.3, 0.25), (9, 6, 5)),
        ((1 / 3, 1 / 3, 1 / 3), (1, 1, 1)),
        (None, (1, 1, 1)),
        ((0.001, 0.9989, 0.0001), (10, 9989, 1)),
    ],
)
def test_weights_are_the_shares_as_written(
    shares: tuple[float, ...] | None, weights: tuple[int, ...]
) -> None:
    found = LongCycle(COARSE_TO_FINE, shares).weights
    assert [Fraction(each, sum(found)) for each in found] == [
        Fraction(each, sum(weights)) for each in weights
    ]


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: LongCycle(COARSE_TO_FINE, (0.5, 0.3, 0.1), once=True),
        "long_cycle.shares [0.5, 0.3, 0.1]: they sum to 0.9; give shares of the steps that sum to "
        "1",
    ),
    (
        lambda: LongCycle(COARSE_TO_FINE, (0.7, 0.3, 0.0)),
        "long_cycle.shares [0.7, 0.3, 0]: give a share above 0 for each of 3 shapes, or null",
    ),
    (
        lambda: LongCycle(COARSE_TO_FINE, (0.5, 0.5)),
        "long_cycle.shares [0.5, 0.5]: give a share above 0 for each of 3 shapes, or null",
    ),
    (
        lambda: LongCycle(((0.25, 0.5), (0.5, SQRT_HALF)), once=True),
        "long_cycle.factors [[0.25, 0.5], [0.5, 0.707107]]: a run ends on the full grid; make "
        "[1, 1] the last",
    ),
    (
        lambda: LongCycle(((1.0, 1.0), (0.5, 0.5), (1.0, 1.0)), once=True),
        "long_cycle.factors [[1, 1], [0.5, 0.5], [1, 1]]: a single pass goes from coarse to fine; "
        "give the shapes in that order",
    ),
    (
        lambda: LongCycle(COARSE_TO_FINE, batch_factors=(4, 2)),
        "long_cycle.batch_factors [4, 2]: give a whole number of at least 1 for each of 3 shapes, "
        "or null",
    ),
    (
        lambda: LongCycle(COARSE_TO_FINE, batch_factors=(4, 2, 0)),
        "long_cycle.batch_factors [4, 2, 0]: give a whole number of at least 1 for each of 3 "
        "shapes, or null",
    ),
    (
        lambda: LongCycle(COARSE_TO_FINE, rate_factors=(2.0, 0.0, 1.0)),
        "long_cycle.rate_factors [2, 0, 1]: give a positive number for each of 3 shapes, or null",
    ),
    (
        lambda: Anneal(share=1.2),
        "anneal.share 1.2: the anneal is longer than the run; give a share of the steps of at "
        "most 1, or null for the steps on the full grid",
    ),
    (
        lambda: Anneal(share=0.0),
        "anneal.share 0: give a share of the steps above 0 and at most 1, or null for the steps "
        "on the full grid",
    ),
    (lambda: Anneal(form="step"), "anneal.form 'step': choose linear or cosine"),  # type: ignore[arg-type]
    (lambda: Anneal(final=2), "anneal.final 2: give a share of the peak from 0 to 1"),
    (lambda: Anneal(warmup=1), "anneal.warmup 1: give a share of the steps from 0 to below 1"),
    (
        lambda: Plan(SMALL, replace(Multigrid.named("anneal"), anneal=Anneal(warmup=0.8))),
        "anneal.warmup 0.8: the rate would still rise where it is to fall, from 0.757 of the steps "
        "on; give less",
    ),
    (
        lambda: Plan(
            SMALL, replace(Multigrid.named("anneal"), steps=400, anneal=Anneal(share=0.0025))
        ),
        "anneal.share 0.0025: 400 steps leave the fall none; give 0.005 or more",
    ),
    (
        lambda: Plan(SMALL, replace(Multigrid.named("anneal"), anneal=Anneal(share=0.95))),
        "anneal.warmup 0.1: the rate would still rise where it is to fall, from 0.05 of the steps "
        "on; give less, or anneal.share 0.9",
    ),
    (
        lambda: Multigrid(long_cycle=LongCycle(COARSE_TO_FINE, once=True)),
        "fine_tuning true: a long cycle that is gone through once has no last stage to fine-tune "
        "in; give false",
    ),
    (
        lambda: Plan(
            SMALL, replace(Multigrid.named("anneal"), long_cycle=LongCycle(COARSE_TO_FINE))
        ),
        "long_cycle.once false: it would begin anew in each of 3 learning-rate stages, and an "
        "anneal is one curve over the run; give true (in Python replace(multigrid.long_cycle, "
        "shares=...) keeps it)",
    ),
    (
        lambda: Plan(SMALL, replace(Multigrid.named("pass"), steps=2)),
        "steps 2: none of the plan's is left for 8x96x96; give more, such as 4, or fewer "
        "long-cycle shapes, or a larger share for it",
    ),
]


@pytest.mark.parametrize(("action", "message"), MISTAKES)
def test_mistakes_are_one_line(action: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        action()


def test_a_pass_may_visit_grids_of_as_many_pixels_in_either_order() -> None:
    """Whose products differ in their last bits."""
    same = ((0.5, SQRT_HALF), (0.25, 1.0))
    for first, second in (same, same[::-1]):
        assert LongCycle((first, second, (1.0, 1.0)), once=True).once


@pytest.mark.parametrize("warmup", [0.1, 0.2, 0.3])
def test_an_anneal_may_begin_where_its_warmup_ends(warmup: float) -> None:
    share = round(1 - warmup, 1)
    multigrid = replace(Multigrid.named("anneal"), anneal=Anneal(warmup=warmup, share=share))
    assert len(Plan(SMALL, multigrid)) > 1


def test_a_warm_up_that_ends_after_a_drop_never_falls() -> None:
    rate = LearningRate(1.0, warmup_steps=60, warmup_start=0.5)
    plan = Plan(Baseline(Shape(4, 32, 32), 8, 100, 50, rate, (40, 80)), Multigrid.off())
    rates = [step.learning_rate for step in plan[: plan.warmup_steps + 1]]
    assert rates == sorted(rates)
    assert rates[0] == rates[-1] == 0.1
