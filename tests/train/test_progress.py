"""Time left, against a brute-force sum over the plan's remaining steps."""

from __future__ import annotations

import pytest

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape
from vcycle.train.progress import TimeLeft, duration

PLAN = Plan(
    Baseline(Shape(8, 64, 64), 8, 200, 50, LearningRate(0.1), (100, 150)),
    Multigrid(),
)


@pytest.mark.parametrize("first_step", [0, 1, 13, len(PLAN) - 1])
def test_time_left_is_the_sum_over_the_steps_that_remain(first_step: int) -> None:
    left = TimeLeft(PLAN, first_step=first_step)
    cost = {shape: 0.5 + i for i, shape in enumerate(PLAN.shapes)}
    for step in PLAN[first_step:]:
        left.add(step, cost[step.shape])
        seen = {done.shape for done in PLAN[first_step : step.index + 1]}
        if len(seen) == len({later.shape for later in PLAN[first_step:]}):
            rest = sum(cost[later.shape] for later in PLAN[step.index + 1 :])
            assert left.seconds() == pytest.approx(rest)
    assert left.seconds() == pytest.approx(0, abs=1e-9)


def test_a_shape_not_seen_yet_costs_as_much_a_pixel() -> None:
    left = TimeLeft(PLAN)
    step = PLAN[0]
    left.add(step, step.batch_size * step.shape.num_pixels * 1e-6)
    pixels = sum(later.batch_size * later.shape.num_pixels for later in PLAN[1:])
    assert left.seconds() == pytest.approx(pixels * 1e-6, rel=0.01)


def test_durations_read_well() -> None:
    texts = [duration(x) for x in (0.4, 59.4, 61, 3599, 3600, 27000, float("nan"))]
    assert texts == ["0 s", "59 s", "1:01 min", "59:59 min", "1:00 h", "7:30 h", "?"]
