"""Costs against sums over every step."""

import pytest

from vcycle.schedule import cost
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.plan import Multigrid, Plan
from vcycle.schedule.shape import Shape

BASELINE = Baseline(Shape(32, 224, 224), 64, 9_000, 24_000, LearningRate(0.1), (4_000, 7_000))
PLAN = Plan(BASELINE, Multigrid())

# Multiply-adds of one clip of SlowFast R50 8x8 and the reduction of the forward pass that the
# official code reaches on Kinetics; its phases end at whole epochs.
SLOWFAST = {
    "8x112x112": 3297398784,
    "8x158x158": 6407244096,
    "16x112x112": 6593875968,
    "16x158x158": 12813566592,
    "16x224x224": 25154752512,
    "32x112x112": 13186830336,
    "32x158x158": 25626211584,
    "32x224x224": 50308583424,
}


def test_counts_of_every_mini_batch() -> None:
    counts: dict[tuple[Shape, int], int] = {}
    for step in PLAN:
        key = (step.shape, step.batch_size)
        counts[key] = counts.get(key, 0) + 1
    assert PLAN.step_counts() == counts
    assert sum(counts.values()) == len(PLAN)


def test_frames_and_pixels() -> None:
    walked = sum(step.batch_size * step.shape.frames for step in PLAN)
    assert cost.frames(PLAN) == cost.Cost(walked, 9_000 * 64 * 32)
    walked = sum(step.batch_size * step.shape.num_pixels for step in PLAN)
    assert cost.pixels(PLAN) == cost.Cost(walked, 9_000 * 64 * 32 * 224 * 224)
    # Every step costs about the same (equation 1), so the two reductions are near each other.
    assert cost.pixels(PLAN).reduction == pytest.approx(PLAN.step_reduction, rel=0.01)


def test_multiply_adds_of_slowfast_on_kinetics() -> None:
    rate = LearningRate(0.1)
    ends = (94 * 3750, 154 * 3750, 196 * 3750)
    plan = Plan(
        Baseline(Shape(32, 224, 224), 64, 239 * 3750, 240_000, rate, ends),
        Multigrid(),
    )
    total = cost.clip_cost(plan, lambda shape: SLOWFAST[str(shape)])
    assert total.reduction == pytest.approx(3.3426, rel=2e-3)


def test_seconds() -> None:
    step_seconds = {shape: 0.1 + shape.num_pixels / 1e7 for shape in PLAN.mini_batches()}
    predicted = cost.seconds(PLAN, step_seconds)
    assert predicted.plan == pytest.approx(sum(step_seconds[step.shape] for step in PLAN))
    assert predicted.baseline == pytest.approx(9_000 * step_seconds[BASELINE.shape])
    assert predicted.reduction == predicted.baseline / predicted.plan


def test_a_shape_without_a_figure() -> None:
    step_seconds = dict.fromkeys(PLAN.mini_batches(), 1.0)
    del step_seconds[Shape(32, 224, 224)], step_seconds[Shape(8, 112, 112)]
    message = r"^seconds of a step: no figure for 32x224x224, 8x112x112; measure these shapes too$"
    with pytest.raises(ValueError, match=message):
        cost.seconds(PLAN, step_seconds)
    with pytest.raises(ValueError, match=r"^memory of a step: no figure for"):
        cost.batch_memory(PLAN, step_seconds, available_bytes=1)


def test_memory_and_micro_batches() -> None:
    giga = 2**30
    # 8 x 112 x 112 takes 1024 clips a step on four devices: 256 on each, in groups of 16.
    sizes = dict.fromkeys(PLAN.mini_batches(), 10.0 * giga)
    sizes[Shape(8, 112, 112)] = 40 * giga
    sizes[Shape(32, 112, 112)] = 1000 * giga  # 64 clips each, in groups of 32
    rows = cost.batch_memory(PLAN, sizes, available_bytes=16 * giga, num_devices=4)
    assert [row.shape for row in rows] == list(PLAN.mini_batches())
    by_shape = {str(row.shape): row for row in rows}
    coarse = by_shape["8x112x112"]
    assert (coarse.batch_size, coarse.fits, coarse.micro_batch) == (1024, False, 64)
    assert by_shape["32x112x112"].micro_batch is None
    fine = by_shape["32x224x224"]
    assert (fine.batch_size, fine.fits, fine.micro_batch) == (64, True, 16)
    assert fine.step_bytes == 10 * giga


def test_memory_without_norm_groups() -> None:
    plan = Plan(BASELINE, Multigrid.off(norm_group=None))
    (row,) = cost.batch_memory(plan, {BASELINE.shape: 64.0}, available_bytes=3.5)
    assert (row.fits, row.micro_batch) == (False, 2)  # 64 clips of one byte each
