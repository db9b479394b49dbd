"""How many workers a plan needs, by hand: one shape, two sources."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from vcycle.bench.decoding import clip_seconds, decoding_line
from vcycle.data.loader_stats import workers_for
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cost import measured_steps
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape

PLAN = Plan(
    Baseline(Shape(8, 112, 112), 64, 10, 100, LearningRate(0.1)), Multigrid.off(norm_group=8)
)
STEPS = measured_steps([{"shape": "8x112", "clips": 64, "seconds": 0.1}])  # 640 clips/s
ROWS = [
    {"source": "raw", "shape": "8x112", "cpu_ms_per_clip": 25.0},
    {"source": "raw", "shape": "32x224", "cpu_ms_per_clip": 90.0},
    {"source": "prepared", "shape": "8x112", "cpu_ms_per_clip": 5.0},
    {"source": "decord", "shape": "8x112", "cpu_ms_per_clip": 40.0},
]


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        (18, "18 keep up"),
        (17, "17 cannot keep up with raw ones: vcycle data prepare"),
        (4, "4 keep up"),
        (3, "3 cannot keep up: give more cores (--data.num_workers)"),
    ],
)
def test_what_is_said_of_so_many_workers(workers: int, said: str) -> None:
    """640 clips/s x 25 ms x 1.1 are 17.6 workers; 5 ms are 3.52."""
    rows = [row for row in ROWS if workers > 4 or row["source"] == "prepared"]
    line = decoding_line(PLAN, STEPS, clip_seconds(rows), workers=workers)
    assert line.startswith("decoding: training takes 640 clips/s at 8x112x112; ")
    assert ("raw videos need 18 workers" in line) == (workers > 4)
    assert "prepared videos need 4 workers" in line
    assert line.endswith(f"; {said}")


def test_few_clips_need_one_worker() -> None:
    assert workers_for(0.01, 1.0) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "give the rows that vcycle bench loader --json prints"),
        ({}, "give the rows that vcycle bench loader --json prints"),
        ([{"source": "raw"}], "row 0: give source, shape and cpu_ms_per_clip"),
        *(
            (
                [ROWS[0], {**ROWS[0], "cpu_ms_per_clip": value}],
                f"row 1: cpu_ms_per_clip {value}: give a positive number",
            )
            for value in (None, float("nan"), float("inf"), 0, -1.0, "fast")
        ),
        ([ROWS[-1]], "no row has the source raw or prepared; give rows of vcycle bench loader"),
    ],
)
def test_rows_of_something_else(rows: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        clip_seconds(rows)


def test_clips_are_to_come_as_fast_as_the_fastest_shape_takes_them() -> None:
    """That is the one of most clips a second, though its steps may take longer than others."""
    plan = Plan(replace(PLAN.baseline, steps=200, stage_ends=(100, 150)), Multigrid(norm_group=8))
    coarse, *others = plan.shapes
    steps = measured_steps(
        [
            {"shape": str(coarse), "clips": 1024, "seconds": 0.4},
            *({"shape": str(shape), "clips": 64, "seconds": 0.1} for shape in others),
        ]
    )
    line = decoding_line(plan, steps, clip_seconds(ROWS), workers=99)
    assert line.startswith(f"decoding: training takes 2,560 clips/s at {coarse}; ")


def test_steps_that_the_plan_does_not_take_are_no_speed_of_it() -> None:
    """Those of clips with fewer tokens, or of more clips than a batch has."""
    others = [
        {"shape": "8x112", "clips": 64, "seconds": 0.01, "token_share": 0.1},
        {"shape": "8x112", "clips": 256, "seconds": 0.1},
    ]
    steps = [*measured_steps(others), *STEPS]
    line = decoding_line(PLAN, steps, clip_seconds(ROWS), workers=99)
    assert line.startswith("decoding: training takes 640 clips/s at 8x112x112; ")
