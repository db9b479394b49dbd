"""The charts of a report, as Plotly takes them: plain dictionaries of data and layout.

In: runs and their titles. Out: a dictionary for each chart. Colours are the page's, which has a
dark and a light set: a trace names its colour as ``meta.series``, a number.

Plotly reads tags in every text that it draws, so names from outside are escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vcycle.evaluate.metric_names import METRICS, distinct
from vcycle.report.runs import RunRecord

Chart = dict[str, Any]
Row = dict[str, Any]

SERIES = 5
"""Colours and markers that the page has; further runs take them again, dashed."""
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x")
_DASHES = ("solid", "dash", "dot")
_MOST_POINTS = 250
_MOST_TICKS = 40
_NAME_LENGTH = 24
COST_TITLES = {
    "seconds": "seconds of training",
    "steps": "steps",
    "clips": "clips",
    "multiply_adds": "multiply-adds",
}
_COST_FORMATS = {"seconds": ",.1f", "steps": ",", "clips": ",", "multiply_adds": ".3s"}


def accuracy_chart(runs: Mapping[str, RunRecord], cost: str) -> Chart:
    """Accuracy of every validation over what it took; a line a run."""
    metric = next(iter(runs.values())).metric
    format_ = _COST_FORMATS[cost]
    data = []
    for number, (title, run) in enumerate(runs.items()):
        points = [point for point in run.points if getattr(point, cost) is not None]
        data.append(
            {
                **_line(number, title),
                "mode": "lines+markers",
                "x": [getattr(point, cost) for point in points],
                "y": [point.accuracy for point in points],
                "hovertemplate": f"%{{y:.1%}} at %{{x:{format_}}} {COST_TITLES[cost]}"
                "<extra>%{fullData.name}</extra>",
            }
        )
    return {
        "data": data,
        "layout": {
            "xaxis": {
                "title": {"text": COST_TITLES[cost]},
                "rangemode": "tozero",
                "tickformat": "~s" if cost != "seconds" else ",",
            },
            "yaxis": {
                "title": {"text": METRICS[metric]},
                "range": [0, 1.02],
                "tickformat": ".0%",
            },
        },
    }


def step_chart(runs: Mapping[str, RunRecord], name: str) -> Chart:
    """The loss or the learning rate over steps; the mean of neighbours if there are many."""
    data = []
    for number, (title, run) in enumerate(runs.items()):
        rows = [row for row in run.steps if row.get(name) is not None]
        steps, values = thinned(
            np.array([row["step"] + 1 for row in rows], float),
            np.array([row[name] for row in rows], float),
        )
        data.append(
            {
                **_line(number, title),
                "mode": "lines",
                "x": steps.tolist(),
                "y": values.tolist(),
                "hovertemplate": "%{y:.4g} at step %{x:,.0f}<extra>%{fullData.name}</extra>",
            }
        )
    yaxis: Row = {"title": {"text": name.replace("_", " ")}, "exponentformat": "power"}
    if name == "learning_rate":
        yaxis["type"] = "log"
    else:
        yaxis["rangemode"] = "tozero"
    xaxis = {"title": {"text": "steps"}, "rangemode": "tozero", "tickformat": "~s"}
    return {"data": data, "layout": {"xaxis": xaxis, "yaxis": yaxis}}


def thinned(
    steps: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most 250 points: each is the mean of as many neighbours, at their mean step."""
    size = max(1, math.ceil(len(values) / _MOST_POINTS))
    edges = np.arange(0, len(values), size)
    counts = np.diff(np.append(edges, len(values)))
    if not len(values):
        return steps, values
    return np.add.reduceat(steps, edges) / counts, np.add.reduceat(values, edges) / counts


def throughput_chart(phases: Sequence[Row]) -> Chart:
    """Clips a second of every phase that is done, by what limited it."""
    data = []
    for verdict, series in (("compute-bound", 2), ("loader-bound", 1)):
        rows = [row for row in phases if row["limit"] == verdict]
        data.append(
            {
                "type": "bar",
                "name": verdict,
                "meta": {"series": series},
                "marker": {"pattern": {"shape": "/" if verdict == "loader-bound" else ""}},
                "x": [row["phase"] for row in rows],
                "y": [row["clips_per_second"] for row in rows],
                "text": [row["shape"] for row in rows],
                "textposition": "none",
                "hovertemplate": "phase %{x}, %{text}: %{y:,.0f} clips/s"
                "<extra>%{fullData.name}</extra>",
            }
        )
    return {"data": data, "layout": _phase_layout("clips per second", phases, legend=True)}


def waiting_chart(phases: Sequence[Row]) -> Chart:
    """The share of every phase in which training waited for clips."""
    bars = {
        "type": "bar",
        "name": "waiting for clips",
        "meta": {"series": 1},
        "x": [row["phase"] for row in phases],
        "y": [row["wait_share"] for row in phases],
        "text": [row["shape"] for row in phases],
        "textposition": "none",
        "hovertemplate": "phase %{x}, %{text}: %{y:.1%} waiting<extra></extra>",
    }
    layout = _phase_layout("waiting for clips", phases)
    layout["yaxis"] |= {"tickformat": ".0%", "range": [0, 1]}
    return {"data": [bars], "layout": layout}


def _phase_layout(title: str, phases: Sequence[Row], *, legend: bool = False) -> Row:
    ticks: Row = {"dtick": 1} if len(phases) <= 16 else {"tickformat": "d"}
    return {
        "barmode": "overlay",
        "showlegend": legend,
        "xaxis": {"title": {"text": "phase"}, "showgrid": False, **ticks},
        "yaxis": {"title": {"text": title}, "rangemode": "tozero"},
    }


def confusion_chart(counts: NDArray[np.int64], classes: Sequence[str]) -> Chart:
    """Videos of each true class (rows) taken for each class, coloured by their share of the row."""
    totals = counts.sum(1, keepdims=True)
    names = _short_names(classes)
    few = len(classes) <= 20
    ticks: Row = {"dtick": 1} if len(classes) <= _MOST_TICKS else {"nticks": _MOST_TICKS}
    axis: Row = {"type": "category", "automargin": True, "showgrid": False, **ticks}
    heatmap = {
        "type": "heatmap",
        "meta": {"series": 0},
        "x": names,
        "y": names,
        "z": np.round(counts / np.maximum(totals, 1), 4).tolist(),
        "customdata": counts.tolist(),
        "zmin": 0,
        "zmax": 1,
        "xgap": 1 if few else 0,
        "ygap": 1 if few else 0,
        "colorbar": {"tickformat": ".0%", "thickness": 12, "title": {"text": "of the row"}},
        "hovertemplate": "%{y} taken for %{x}: %{customdata:,} videos, %{z:.0%}<extra></extra>",
    }
    if few:
        heatmap["text"] = [[str(count) if count else "" for count in row] for row in counts]
        heatmap["texttemplate"] = "%{text}"
    return {
        "data": [heatmap],
        "layout": {
            "height": min(900, max(420, 160 + 24 * len(classes))),
            "xaxis": {**axis, "title": {"text": "taken for"}, "tickangle": -45},
            "yaxis": {
                **axis,
                "title": {"text": "true class", "standoff": 14},
                "autorange": "reversed",
            },
        },
    }


def _line(number: int, title: str) -> Chart:
    return {
        "type": "scatter",
        "name": escape(title, quote=False),  # Plotly knows few names of characters
        "meta": {"series": number % SERIES},
        "line": {"width": 2, "dash": _DASHES[number // SERIES % len(_DASHES)]},
        "marker": {"size": 8, "symbol": _SYMBOLS[number % SERIES]},
    }


def _short_names(classes: Sequence[str]) -> list[str]:
    """Class names for an axis: short, escaped, each once."""
    names = [
        name[: _NAME_LENGTH - 1] + "\u2026" if len(name) > _NAME_LENGTH else name
        for name in classes
    ]
    return [escape(name, quote=False) for name in distinct(names)]
