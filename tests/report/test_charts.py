"""Charts: Plotly takes each of them, and long series become means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from vcycle.report.charts import (
    accuracy_chart,
    confusion_chart,
    step_chart,
    thinned,
    throughput_chart,
    waiting_chart,
)
from vcycle.report.compare import COSTS
from vcycle.report.runs import read_run

PHASES = [
    {"phase": 1, "shape": "16 x 4x16x16", "limit": "loader-bound", "clips_per_second": 9.0},
    {"phase": 2, "shape": "4 x 8x32x32", "limit": "compute-bound", "clips_per_second": 4.0},
]


def test_plotly_knows_every_property_of_every_chart(trained_run: Path) -> None:
    runs = {"<b>one</b>": read_run(trained_run), "two": read_run(trained_run)}
    phases = [{**phase, "wait_share": 0.2} for phase in PHASES]
    charts = [
        *(accuracy_chart(runs, cost) for cost in COSTS),
        *(step_chart(runs, name) for name in ("loss", "learning_rate")),
        throughput_chart(phases),
        waiting_chart(phases),
        confusion_chart(np.eye(3, dtype=np.int64), ("a", "b", "c")),
    ]
    for chart in charts:
        go.Figure(chart)  # raises ValueError for a property that it does not have
        assert all("series" in trace["meta"] for trace in chart["data"])
    assert charts[0]["data"][0]["name"] == "&lt;b&gt;one&lt;/b&gt;"
    assert [trace["x"] for trace in charts[6]["data"]] == [[2], [1]]


def test_long_series_become_means() -> None:
    steps, values = thinned(np.arange(1.0, 1004.0), np.arange(1.0, 1004.0) * 2)
    assert len(steps) <= 250
    np.testing.assert_allclose(values, 2 * steps)
    assert steps[0] == pytest.approx(3.0)  # of 1 to 5
    assert steps[-1] == pytest.approx(1002.0)  # of 1001 to 1003
    few = np.array([1.0, 2.0])
    np.testing.assert_array_equal(thinned(few, few)[0], few)
    assert len(thinned(few[:0], few[:0])[0]) == 0


def test_names_on_an_axis_are_short_and_each_its_own() -> None:
    classes = ("x" * 30 + "1", "x" * 30 + "2", "<i>")
    chart = confusion_chart(np.array([[1, 1, 0], [0, 0, 0], [0, 0, 3]]), classes)
    names = chart["data"][0]["x"]
    assert len(set(names)) == 3
    assert names[2] == "&lt;i&gt;"
    assert max(map(len, names)) < 30
    assert chart["data"][0]["z"] == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
