"""Costs against sums over every step."""

import math
import re
from dataclasses import replace

import pytest

from vcycle.data.grid import GridRange
from vcycle.schedule import cost
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.norm_groups import check_norm_group
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape

BASELINE = Baseline(Shape(32, 224, 224), 64, 9_000, 24_000, LearningRate(0.1), (4_000, 7_000))
PLAN = Plan(BASELINE, Multigrid())
KINDS = PLAN.mini_batches()

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
    total = cost.clip_cost(plan, lambda shape, _: SLOWFAST[str(shape)])
    assert total.reduction == pytest.approx(3.3426, rel=2e-3)


def test_frames_spanned() -> None:
    """The mean over every stride that a grid may draw, in the range that the data path draws in."""
    grids = GridRange(BASELINE.shape, 2, (256, 340))

    def mean_span(shape: Shape) -> float:
        low, high = grids.strides(shape.frames)
        spans = [1 + (shape.frames - 1) * stride for stride in range(low, high + 1)]
        return sum(spans) / len(spans)

    walked = sum(step.batch_size * mean_span(step.shape) for step in PLAN)
    spanned = cost.frames_spanned(PLAN, stride=2)
    assert spanned.plan == pytest.approx(walked)
    assert spanned.baseline == 9_000 * 64 * 63
    # 8 frames span as many as 32 at their largest stride, so that a decoder gains less.
    assert spanned.reduction < 1 < cost.frames(PLAN).reduction


def measured(**changes: object) -> list[cost.MeasuredStep]:
    """Every shape at its batch, and what should differ in some of them."""
    rows = [
        {
            "shape": str(each.shape),
            "clips": each.batch_size,
            "seconds": 0.1 + each.shape.num_pixels / 1e7,
        }
        for each in dict.fromkeys(replace(each, norm_group=0, steps=0) for each in KINDS)
    ]
    return cost.measured_steps([{**row, **changes} for row in rows])


def without(steps: list[cost.MeasuredStep], *shapes: Shape) -> list[cost.MeasuredStep]:
    return [step for step in steps if step.shape not in shapes]


def test_seconds() -> None:
    steps = measured()
    predicted = cost.seconds(PLAN, steps)
    taken = {step.shape: step.seconds for step in steps}
    assert predicted.plan == pytest.approx(sum(taken[step.shape] for step in PLAN))
    assert predicted.baseline == pytest.approx(9_000 * taken[BASELINE.shape])
    assert predicted.reduction == predicted.baseline / predicted.plan


def test_seconds_are_in_proportion_to_the_clips() -> None:
    halves = [
        cost.MeasuredStep(step.shape, step.clips // 2, step.seconds / 2) for step in measured()
    ]
    assert cost.seconds(PLAN, halves) == cost.seconds(PLAN, measured())


def test_the_nearest_batch_counts_then_its_norm_group() -> None:
    """A shape is there with other clips and another group: the plan's own step counts."""
    steps = measured()
    others = [replace(step, clips=3 * step.clips, seconds=100.0) for step in steps]
    assert cost.seconds(PLAN, [*others, *steps]) == cost.seconds(PLAN, steps)
    plan = Plan(BASELINE, Multigrid.off(norm_group=8))
    grouped = cost.MeasuredStep(BASELINE.shape, 64, 1.0, norm_group=8)
    whole = cost.MeasuredStep(BASELINE.shape, 64, 2.0)
    for pair in ([grouped, whole], [whole, grouped]):
        assert cost.seconds(plan, pair) == cost.Cost(9_000, 9_000)


def test_the_nearest_batch_is_that_of_the_smallest_ratio() -> None:
    """40 clips are 4 times 10, and 100 are 2.5 times 40."""
    small = Baseline(BASELINE.shape, 40, 100, 24_000, LearningRate(0.1))
    plan = Plan(small, Multigrid.off(norm_group=8))
    steps = [
        cost.MeasuredStep(BASELINE.shape, clips, seconds)
        for clips, seconds in ((10, 10.0), (100, 200.0))
    ]
    assert cost.seconds(plan, steps).plan == pytest.approx(100 * 40 * 2.0)


def test_a_plan_that_never_visits_the_baselines_shape() -> None:
    """Two steps of a phase end before the short cycle comes to it."""
    short = Baseline(Shape(32, 224, 224), 64, 2, 24_000, LearningRate(0.1))
    plan = Plan(short, Multigrid(long_cycle=None, fine_tuning=False, steps=2))
    assert BASELINE.shape not in plan.shapes
    steps = measured()
    predicted = cost.seconds(plan, steps)
    (full,) = (step for step in steps if step.shape == BASELINE.shape)
    assert predicted.baseline == pytest.approx(2 * full.seconds)
    with pytest.raises(
        ValueError, match=r"^seconds of a step: measure 32x224x224 with 64 clips too"
    ):
        cost.seconds(plan, without(steps, BASELINE.shape))


def test_a_shape_without_a_figure() -> None:
    steps = without(measured(), Shape(32, 224, 224), Shape(8, 112, 112))
    message = "measure 8x112x112 with 1,024 clips, 32x224x224 with 64 clips too"
    with pytest.raises(ValueError, match=f"^seconds of a step: {message}$"):
        cost.seconds(PLAN, steps)
    with pytest.raises(ValueError, match=r"^bytes of a step: measure 8x112x112 with 1,024 clips, "):
        cost.batch_memory(PLAN, measured(), available_bytes=1)


ROW = {"shape": "8x158x158", "clips": 4, "seconds": 1.5}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "give a list of rows with shape, clips, seconds and, for memory, bytes"),
        (ROW, "give a list of rows with shape, clips, seconds and, for memory, bytes"),
        ([], "give a list of rows with shape, clips, seconds and, for memory, bytes"),
        ([3], "row 0: give shape, clips and seconds"),
        ([ROW, {"shape": "8x158"}], "row 1: give shape, clips and seconds"),
        ([ROW, ROW], "row 1: 4 clips of 8x158x158 are there twice; leave one out"),
        ([{**ROW, "shape": 8}], "shape '8': write frames x height x width, such as 16x224x224"),
        ([{**ROW, "seconds": 0}], "seconds 0 at 8x158x158: give a positive number"),
        ([{**ROW, "seconds": -1.5}], "seconds -1.5 at 8x158x158: give a positive number"),
        ([{**ROW, "seconds": "x"}], "seconds x at 8x158x158: give a positive number"),
        ([{**ROW, "seconds": math.nan}], "seconds nan at 8x158x158: give a positive number"),
        ([{**ROW, "seconds": 5e-324}], "seconds 5e-324 at 8x158x158: give a positive number"),
        ([{**ROW, "seconds": True}], "seconds True at 8x158x158: give a positive number"),
        (
            [{**ROW, "seconds": 10**400}],
            "seconds 10000000000000000000 at 8x158x158: give a positive number",
        ),
        (
            [{**ROW, "clips": 10**400}],
            "clips 10000000000000000000 at 8x158x158: give a whole number from 1",
        ),
        ([{**ROW, "bytes": 0}], "bytes 0 at 8x158x158: give a positive number"),
        ([{**ROW, "norm_group": 0}], "norm_group 0 at 8x158x158: give a number of clips, or null"),
        (
            [{**ROW, "norm_group": 2.5}],
            "norm_group 2.5 at 8x158x158: give a number of clips, or null",
        ),
        (
            [{**ROW, "norm_group": "8"}],
            "norm_group 8 at 8x158x158: give a number of clips, or null",
        ),
        ([{**ROW, "clips": 0}], "clips 0 at 8x158x158: give a whole number from 1"),
        ([{**ROW, "clips": 2.5}], "clips 2.5 at 8x158x158: give a whole number from 1"),
    ],
)
def test_rows_that_measure_nothing(rows: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cost.measured_steps(rows)


def test_memory_and_micro_batches() -> None:
    giga = 2**30
    # 8 x 112 x 112 takes 1024 clips a step on four devices: 256 on each, in groups of 16.
    steps = measured(bytes=10 * giga)
    sizes = {Shape(8, 112, 112): 40, Shape(32, 112, 112): 1000}
    steps = [replace(step, step_bytes=sizes.get(step.shape, 10) * giga) for step in steps]
    rows = cost.batch_memory(PLAN, steps, available_bytes=16 * giga, num_devices=4)
    assert [row.shape for row in rows] == list(PLAN.shapes)
    by_shape = {str(row.shape): row for row in rows}
    coarse = by_shape["8x112x112"]
    assert (coarse.batch_size, coarse.fits, coarse.micro_batch) == (1024, False, 64)
    # 64 clips on each, in groups of 32: 8 on each of 4 devices make one, and take 125 GiB.
    assert by_shape["32x112x112"].micro_batch is None
    fine = by_shape["32x224x224"]
    assert (fine.batch_size, fine.fits, fine.micro_batch) == (64, True, 16)
    assert fine.step_bytes == 10 * giga


def test_micro_batches_split_no_group_over_time() -> None:
    """Every micro-batch that is named passes the check that training makes."""
    for available in (1e9, 2e9, 5e9, 2e10, 1e11):
        steps = measured(bytes=1e10)
        rows = cost.batch_memory(PLAN, steps, available_bytes=available, num_devices=16)
        for row in rows:
            groups = {each.norm_group for each in KINDS if each.shape == row.shape}
            for group in groups if row.micro_batch else ():
                assert group is not None
                check_norm_group(group, batch_clips=16 * row.micro_batch, num_parts=16)


def test_memory_is_in_proportion_to_the_clips() -> None:
    plan = Plan(BASELINE, Multigrid.off(norm_group=None))
    step = cost.MeasuredStep(BASELINE.shape, 32, 1.0, 32.0)  # a byte a clip
    (row,) = cost.batch_memory(plan, [step], available_bytes=3.5)
    assert (row.step_bytes, row.fits, row.micro_batch) == (64.0, False, 2)
    (row,) = cost.batch_memory(plan, [step], available_bytes=64.0)
    assert (row.fits, row.micro_batch) == (True, 64)


def test_a_group_that_spans_devices_is_split_evenly() -> None:
    """8 of 24 clips fit on each of 3 devices: two groups of 12, but of 8 and 4 on the devices."""
    plan = Plan(replace(BASELINE, batch_size=72), Multigrid.off(norm_group=12))
    step = cost.MeasuredStep(BASELINE.shape, 72, 1.0, 72.0)
    (row,) = cost.batch_memory(plan, [step], available_bytes=24.0, num_devices=3)
    assert row.micro_batch == 4


@pytest.mark.parametrize(
    ("available_bytes", "num_devices", "message"),
    [
        (1e9, 0, "num_devices 0: give at least 1"),
        (1e9, 3, "num_devices 3: it does not divide the batch of 1024 clips at 8x112x112"),
        (0.0, 1, "memory 0.0: give a positive number of bytes"),
    ],
)
def test_devices_that_cannot_share(available_bytes: float, num_devices: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        cost.batch_memory(
            PLAN, measured(bytes=1.0), available_bytes=available_bytes, num_devices=num_devices
        )
