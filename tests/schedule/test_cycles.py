"""Rounding to what a model accepts, and cycles other than the paper's."""

import pytest

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle, ShapeRule, ShortCycle
from vcycle.schedule.plan import Multigrid, Plan
from vcycle.schedule.shape import Shape


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
    assert {(s.height % 16, s.frames % 2) for s in plan.mini_batches()} == {(0, 0)}


def test_sides_in_multiples_of_32() -> None:
    plan = Plan(baseline(Shape(16, 256, 256)), Multigrid(rule=ShapeRule(side_multiple=32)))
    assert [str(shape) for shape in plan.mini_batches() if shape.frames == 16] == [
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
    visited = [[(str(s.shape), s.batch_factor) for s in base.short_cycle] for base in last]
    assert visited == [
        [("4x224x224", 1), ("4x224x224", 1)],
        [("8x224x224", 1), ("8x224x224", 1)],
        [("8x224x224", 2), ("16x224x224", 1)],
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


@pytest.mark.parametrize("decay", ["cosine", "one-cycle"])
def test_the_long_cycle_scales_any_rate(decay: str) -> None:
    rate = LearningRate(0.1, decay=decay)  # type: ignore[arg-type]
    plan = Plan(
        Baseline(Shape(16, 224, 224), 16, 4000, 1000, rate, (2000, 3000)),
        Multigrid(rate_exponent=0.5),
    )
    for step in plan[::13]:
        factor = plan.phases[step.phase].base.batch_factor
        progress = step.index / len(plan)
        assert step.learning_rate == pytest.approx(
            rate.at(stage=0, progress=progress) * factor**0.5
        )
