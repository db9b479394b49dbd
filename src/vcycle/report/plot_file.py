"""The file of a plot: PNG or SVG, the same bytes each time.

In: a matplotlib figure. Out: the file. ``STYLE`` is what our plots have in common.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vcycle.data.atomic import atomic, check_output

TEXT, EDGE, GRID, ACCENT = "#2e3440", "#173f2d", "#aab2c0", "#c2593f"
STYLE: Any = {
    "svg.hashsalt": "vcycle",
    "font.size": 9,
    "axes.edgecolor": GRID,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
}


def check_plot_file(file: Path) -> None:
    """Raise ValueError unless it can be written, and its name ends in .png or .svg."""
    if file.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"--plot {file}: name a file that ends in .png or .svg")
    check_output(file, ".png", ".svg", flag="--plot")


def save_plot(figure: Figure, file: Path) -> None:
    """Write a figure, drawn with the ``svg.hashsalt`` of ``STYLE``."""
    vector = file.suffix.lower() == ".svg"
    metadata = {"Date": None, "Creator": None} if vector else None
    with atomic(file) as partial:
        figure.savefig(partial, format=file.suffix[1:].lower(), dpi=150, metadata=metadata)
        if vector:
            partial.write_text(_number_clip_paths(partial.read_text()))


def _number_clip_paths(svg: str) -> str:
    """Clip paths are named after sizes that the layout leaves different in their last bits."""
    pattern = r"\bp[0-9a-f]{10}\b"
    numbers = {name: f"p{n}" for n, name in enumerate(dict.fromkeys(re.findall(pattern, svg)))}
    return re.sub(pattern, lambda match: numbers[match[0]], svg)
