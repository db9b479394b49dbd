"""The plot of a comparison: accuracy over wall-clock seconds of training, a line a run.

In: run folders. Out: a PNG or SVG file. Seconds are those of training; validation, which is the
same for every run, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from vcycle.data.json_lines import read_rows
from vcycle.evaluate.metric_names import METRICS
from vcycle.report.plot_file import save_plot

COLOURS = ("#2e3440", "#d08770", "#b48ead", "#5e81ac", "#2e7d5b")


def draw_curves(runs: Mapping[str, Path], file: Path, *, title: str) -> None:
    """Draw the top-1 accuracy of each named run folder over its seconds of training."""
    with matplotlib.rc_context({"svg.hashsalt": "vcycle", "font.size": 11}):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.subplots()
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
                label=f"{name}: {scores[-1]:.1f}%",
            )
        axes.set_xlabel("seconds of training")
        axes.set_ylabel(f"{METRICS['top1']} on held-out videos (%)")
        axes.set_title(title, loc="left", pad=14)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 100)
        axes.legend(frameon=False, labelcolor="linecolor")  # where it hides no curve
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        save_plot(figure, file)
