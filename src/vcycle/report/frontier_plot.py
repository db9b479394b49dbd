"""Accuracy of a model over what a clip costs, at several shapes: the frontier to deploy from.

In: the rows of ``vcycle eval --shapes``, by run. Out: a PNG or SVG file. Bars are 95% bootstrap
intervals over videos; the line joins the shapes that no cheaper one is as good as.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullLocator

from vcycle.evaluate.frontier import COSTS
from vcycle.evaluate.metric_names import METRICS, metric_of
from vcycle.report.curves import COLOURS
from vcycle.report.plot_file import GRID, STYLE, check_plot_file, save_plot

_AXES = {"multiply_adds": "multiply-adds of a clip", "milliseconds": "milliseconds of a clip"}
_FORMATTERS = {
    "multiply_adds": EngFormatter(sep=""),
    "milliseconds": FuncFormatter(lambda value, _: f"{value:g}"),
}


def draw_frontiers(runs: Mapping[str, Sequence[dict[str, Any]]], file: Path) -> None:
    """Draw the rows of each named run over both costs; ValueError for other than .png and .svg."""
    check_plot_file(file)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        panels = figure.subplots(1, len(COSTS), sharey=True)
        for axes, cost in zip(panels, COSTS, strict=True):
            for rows, colour in zip(runs.values(), cycle(COLOURS), strict=False):
                counted = [row for row in rows if row[cost] is not None]
                _draw_run(axes, counted, cost, colour=colour)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(_FORMATTERS[cost])
            axes.xaxis.set_minor_locator(NullLocator())
            is_counted = any(row[cost] is not None for rows in runs.values() for row in rows)
            axes.set_xlabel(_AXES[cost] + ("" if is_counted else ": not counted"))
            axes.grid(color=GRID, alpha=0.35, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.margins(x=0.12)
        metric = metric_of(next(iter(runs.values()))[0])
        panels[0].set_ylabel(f"{METRICS[metric]} (%)")
        if len(runs) > 1:
            _draw_legend(panels[0], list(runs))
        save_plot(figure, file)


def _draw_legend(axes: Axes, names: Sequence[str]) -> None:
    """Names of folders as they are, though matplotlib leaves out ``_a`` and reads ``$`` as TeX."""
    colours = zip(names, cycle(COLOURS), strict=False)
    lines = [Line2D([], [], color=colour, linewidth=1.8) for _, colour in colours]
    legend = axes.legend(lines, [""] * len(lines), frameon=False)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set(text=name, parse_math=False)


def _draw_run(axes: Axes, rows: Sequence[dict[str, Any]], cost: str, *, colour: str) -> None:
    best = sorted((row for row in rows if cost in row["frontier"]), key=lambda row: row[cost])
    axes.plot(
        [row[cost] for row in best],
        [100 * row[metric_of(row)] for row in best],
        color=colour,
        linewidth=1.8,
    )
    for row in rows:
        metric = metric_of(row)
        score, chosen = 100 * row[metric], cost in row["frontier"]
        low, high = (100 * share for share in row["intervals"].get(metric, [row[metric]] * 2))
        axes.errorbar(
            row[cost],
            score,
            yerr=[[max(score - low, 0)], [max(high - score, 0)]],
            color=colour,
            alpha=1 if chosen else 0.45,
            marker="o",
            markersize=6,
            markerfacecolor=colour if chosen else "white",
            elinewidth=0.8,
            capsize=2,
        )
        axes.annotate(
            row["shape"],
            (row[cost], score),
            xytext=(6, -11),
            textcoords="offset points",
            fontsize=7.5,
            alpha=1 if chosen else 0.6,
        )
