"""The plot of a comparison: accuracy over wall-clock seconds of training, a line a run.

In: run folders. Out: a PNG or SVG file. Seconds are those of training; validation, which is the
same for every run, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from vcycle.data.json_lines import read_rows
from vcycle.evaluate.metric_names import METRICS
from vcycle.report.plot_file import save_plot

_LABEL = 6.0
"""Least distance between two labels, in per cent of accuracy."""
COLOURS = ("#4c566a", "#d08770", "#2e7d5b", "#5e81ac", "#b48ead")


def draw_curves(runs: Mapping[str, Path], file: Path, *, title: str) -> None:
    """Draw the top-1 accuracy of each named run folder over its seconds of training."""
    with matplotlib.rc_context({"svg.hashsalt": "vcycle", "font.size": 11}):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.subplots()
        ends = []
        for (name, folder), colour in zip(runs.items(), cycle(COLOURS), strict=False):
            rows = read_rows(folder / "validation.jsonl")
            seconds = [row["seconds"] for row in rows]
            scores = [100 * row["top1"] for row in rows]
            axes.plot(
                seconds,
                scores,
                color=colour,
                linewidth=2,
                marker="o",
                markersize=4,
                clip_on=False,
            )
            ends.append((seconds[-1], scores[-1], name, colour))
        heights = spread([score for _, score, _, _ in ends], gap=_LABEL)
        for (end, score, name, colour), height in zip(ends, heights, strict=True):
            axes.annotate(
                f"{name} {score:.1f}%",
                (end, height),
                xytext=(8, 0),
                textcoords="offset points",
                color=colour,
                va="center",
                fontweight="bold",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
            )
        axes.set_xlabel("seconds of training")
        axes.set_ylabel(f"{METRICS['top1']} on held-out videos (%)")
        axes.set_title(title, loc="left", pad=14)
        axes.set_xlim(left=0, right=axes.get_xlim()[1] * 1.25)
        axes.set_ylim(0, 100)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        save_plot(figure, file)


def spread(values: Sequence[float], *, gap: float) -> list[float]:
    """Heights of labels: ``values``, moved down until none is nearer than ``gap`` to another.

    >>> spread([70.0, 98.0, 97.0], gap=6.0)
    [70.0, 98.0, 92.0]
    """
    heights = list(values)
    above = float("inf")
    for i in sorted(range(len(values)), key=lambda i: -values[i]):
        above = heights[i] = min(values[i], above - gap)
    return heights
