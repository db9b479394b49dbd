"""Rounding to what a model accepts, and cycles other than the paper's."""

import pytest

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle, ShortCycle
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape, ShapeRule


def baseline(shape: Shape, batch_size: int = 16) -> Baseline:
    return Baseline(shape, batch_size, 4000, 1000, LearningRate(0.1), (2000, 3000))


def base_shapes(plan: Plan) -> list[tuple[str, int]]:
    """(shape, batch) of the first stage's phases."""
    return [(str(p.base.shape), p.base.batch_size) for p in plan.phases if p.stage == 0]


def test_a_rectangle_keeps_its_sides_apart() -> None:
    plan = Plan(baseline(Shape(16, 180, 320)), Multigrid())
    assert base_shapes(plan) == [
        ("4x127x226", 128),
        ("8x127x226", 64),
        ("8x180x320", 32),
        ("16x180x320", 16),
    ]


def test_patches_of_a_vision_transformer() -> None:
    rule = ShapeRule(frame_multiple=2, side_multiple=16)
    plan = Plan(baseline(Shape(16, 224, 224)), Multigrid(rule=rule))
    assert base_shapes(plan) == [
        ("4x160x160", 128),  # 7.84, a whole multiple
        ("8x160x160", 64),
        ("8x224x224", 32),
        ("16x224x224", 16),
    ]
    assert {(s.height % 16, s.frames % 2) for s in plan.shapes} == {(0, 0)}


def test_sides_in_multiples_of_32() -> None:
    plan = Plan(baseline(Shape(16, 256, 256)), Multigrid(rule=ShapeRule(side_multiple=32)))
    assert [str(shape) for shape in plan.shapes if shape.frames == 16] == [
        "16x128x128",
        "16x192x192",
        "16x256x256",
    ]


def test_frames_that_slowfast_takes() -> None:
    rule = ShapeRule(frame_multiple=4, min_frames=4)
    assert base_shapes(Plan(baseline(Shape(16, 64, 64)), Multigrid(rule=rule)))[0][0] == "4x45x45"
    with pytest.raises(ValueError, match=r"frames 12 x 0.25 is 3, and the model takes at least 4"):
        Plan(baseline(Shape(12, 64, 64)), Multigrid(rule=rule))


def test_images_take_a_spatial_cycle() -> None:
    spatial = LongCycle(((1.0, 0.5), (1.0, 0.5**0.5), (1.0, 1.0)))
    plan = Plan(baseline(Shape(1, 224, 224)), Multigrid(long_cycle=spatial))
    assert base_shapes(plan) == [("1x112x112", 64), ("1x158x158", 32), ("1x224x224", 16)]
    with pytest.raises(ValueError, match=r"frames 1 x 0.25 is 0.25, .* at least 1; start from"):
        Plan(baseline(Shape(1, 224, 224)), Multigrid())


def test_a_temporal_long_and_short_cycle() -> None:
    cycle = LongCycle(((0.25, 1.0), (0.5, 1.0), (1.0, 1.0)))
    near = ShortCycle(((0.5, 1.0),))
    plan = Plan(baseline(Shape(16, 224, 224)), Multigrid(long_cycle=cycle, short_cycle=near))
    assert base_shapes(plan) == [("4x224x224", 64), ("8x224x224", 32), ("16x224x224", 16)]
    # A short-cycle shape is never larger than its base shape.
    last = [p.base for p in plan.phases if p.stage == 0]
    visited = [[(str(s.shape), s.norm_group) for s in base.short_cycle] for base in last]
    assert visited == [
        [("4x224x224", 8), ("4x224x224", 8)],
        [("8x224x224", 8), ("8x224x224", 8)],
        [("8x224x224", 16), ("16x224x224", 8)],
    ]


def test_any_number_of_factors() -> None:
    cycle = LongCycle(tuple((n / 8, n / 8) for n in range(2, 9)))
    near = ShortCycle(tuple((1.0, n / 8) for n in range(3, 8)))
    plan = Plan(baseline(Shape(32, 224, 224)), Multigrid(long_cycle=cycle, short_cycle=near))
    assert len(plan.phases) == 2 * 7 + 2
    assert {len(phase.base.short_cycle) for phase in plan.phases} == {6}


@pytest.mark.parametrize(
    ("exponent", "batches", "rates"),
    [(1.0, [128, 64, 32, 16], [0.8, 0.4, 0.2, 0.1]), (0.0, [16] * 4, [0.1] * 4)],
)
def test_batch_exponent(exponent: float, batches: list[int], rates: list[float]) -> None:
    plan = Plan(baseline(Shape(16, 224, 224)), Multigrid(batch_exponent=exponent))
    assert [batch for _, batch in base_shapes(plan)] == batches
    stage = [phase["learning_rate"] for phase in plan.to_dict()["phases"] if phase["stage"] == 0]
    assert stage == pytest.approx(rates)


def test_an_exponent_of_zero_keeps_the_number_of_steps() -> None:
    plan = Plan(baseline(Shape(16, 224, 224)), Multigrid(batch_exponent=0.0, epoch_factor=1.0))
    assert len(plan) == 4000
    assert {step.norm_group for step in plan[::7]} == {8}


def test_an_exponent_of_one_half() -> None:
    plan = Plan(baseline(Shape(16, 224, 224)), Multigrid(batch_exponent=0.5))
    assert [batch for _, batch in base_shapes(plan)] == [48, 32, 16, 16]  # 8, 4, 2 ** 0.5
    first = [(str(s.shape), s.batch_size, s.norm_group) for s in plan.phases[0].base.short_cycle]
    # The smallest shape takes 16 ** 0.5 times 16 clips, and not 3 * 1 times, as it would if the
    # long and the short cycle were rounded one after the other.
    assert first == [("4x112x112", 64, 8), ("4x158x158", 48, 8), ("4x158x158", 48, 8)]


def test_a_norm_group_grows_by_what_divides_the_batch() -> None:
    cycle = LongCycle(((0.5, 0.5**0.5), (1.0, 1.0)))
    plan = Plan(
        baseline(Shape(16, 224, 224)),
        Multigrid(long_cycle=cycle, short_cycle=ShortCycle(((0.5, 0.375),))),
    )
    near, base = plan.phases[0].base.short_cycle
    # 2 * (224 / 84) ** 2 is 14.2; against the base shape it is 3.54, and 4 does not divide 14.
    assert (str(near.shape), near.batch_size, near.norm_group) == ("8x84x84", 14 * 16, 2 * 8)
    assert (str(base.shape), base.batch_size, base.norm_group) == ("8x158x158", 4 * 16, 8)


def test_a_batch_factor_that_is_given_is_rounded_once_with_equation_1() -> None:
    cycle = LongCycle(((0.5, 1.0), (1.0, 1.0)), batch_factors=(3, 1))
    near = ShortCycle(((1.0, 0.6),))
    plan = Plan(baseline(Shape(16, 224, 224)), Multigrid(long_cycle=cycle, short_cycle=near))
    # 3 * (224 / 134) ** 2 is 8.4; rounded before, it would be 3 * 3.
    short = plan.phases[0].base.short_cycle
    assert [each.batch_size for each in short] == [8 * 16, 3 * 16]


@pytest.mark.parametrize(
    ("size", "multiple", "half"), [(25, 1, 13), (27, 1, 14), (80, 16, 48), (112, 16, 64)]
)
def test_halves_are_rounded_up(size: int, multiple: int, half: int) -> None:
    scaled = ShapeRule(side_multiple=multiple).scale(Shape(1, size, size), frames=1, side=0.5)
    assert scaled == Shape(1, half, half)


def test_a_size_just_below_the_least_in_floating_point() -> None:
    assert 0.29 * 100 < 29
    rule = ShapeRule(min_side=29)
    assert rule.scale(Shape(1, 100, 100), frames=1, side=0.29) == Shape(1, 29, 29)


@pytest.mark.parametrize("decay", ["cosine", "one-cycle"])
def test_the_long_cycle_scales_any_rate(decay: str) -> None:
    rate = LearningRate(0.1, decay=decay)  # type: ignore[arg-type]
    plan = Plan(
        Baseline(Shape(16, 224, 224), 16, 4000, 1000, rate, (2000, 3000)),
        Multigrid(rate_exponent=0.5),
    )
    for step in plan[::13]:
        factor = plan.phases[step.phase].base.short_cycle[-1].batch_factor
        progress = step.index / len(plan)
        assert step.learning_rate == pytest.approx(
            rate.at(stage=0, progress=progress) * factor**0.5
        )


def test_a_norm_group_that_grows_divides_its_batch() -> None:
    """Of batch factors of one's own, where the group does not divide B."""
    plan = Plan(
        Baseline(Shape(8, 100, 100), 4, 400, 100, LearningRate(0.1)),
        Multigrid(
            long_cycle=LongCycle(((1.0, 1.0),), batch_factors=(6,)),
            short_cycle=ShortCycle(((1.0, 0.655),)),
            norm_group=8,
            fine_tuning=False,
        ),
    )
    assert [step.batch_size for step in plan.mini_batches()] == [56, 24]
    for kind in plan.mini_batches():
        assert kind.batch_size % kind.norm_group == 0
