"""The paper's figure 2 for any plan: shapes and batches over the steps, the learning rate beneath.

In: plans by title. Out: a PNG or SVG file, the same bytes each time. A phase is a box: as long as
its steps, as high as its clips' height in pixels, as deep as their frames. Under it stand the
clips of a step. Bands within a box are what the short cycle visits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Polygon, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from vcycle.report.plot_file import ACCENT, EDGE, GRID, STYLE, TEXT, check_plot_file, save_plot
from vcycle.schedule.phases import Phase
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape

TIMES = "\u00d7"
WIDTH_INCHES, HEIGHT_INCHES = 8.4, 5.0
AXES_INCHES = 7.4
"""About what is left of the width for the axes: which labels fit along a box."""
DEPTH = (0.018, 0.17)
"""How far back the deepest box goes: right and up, as shares of the axes."""
HEADROOM = 1.72
"""Height of the upper panel, in heights of the baseline's box."""


def draw_plans(
    plans: Mapping[str, Plan], file: Path, *, validations: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Draw each plan under its title, two in a row; ValueError for other than .png and .svg.

    ``validations`` has for a title the numbers of steps after which there was one: they are marked.
    """
    check_plot_file(file)
    columns = min(2, len(plans))
    rows = -(-len(plans) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(WIDTH_INCHES * columns, HEIGHT_INCHES * rows), layout="constrained"
        )
        parts = figure.subfigures(rows, columns, squeeze=False, hspace=0.05, wspace=0.04)
        batches = {each.batch_size for plan in plans.values() for each in plan.mini_batches()}
        for part, (title, plan) in zip(parts.flat, plans.items(), strict=False):
            marks = (validations or {}).get(title, ())
            _draw_plan(part, plan, title=title, batches=sorted(batches), marks=marks)
        save_plot(figure, file)


def _draw_plan(
    part: SubFigure, plan: Plan, *, title: str, batches: list[int], marks: Sequence[int]
) -> None:
    part.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11, parse_math=False)
    boxes, clips, rates = part.subplots(
        3, 1, sharex=True, gridspec_kw={"height_ratios": [1.7, 1.0, 1.0]}
    )
    colours = _colours(plan)
    _draw_boxes(boxes, plan, colours)
    _draw_batches(clips, plan, colours, batches=batches)
    _draw_rates(rates, plan)
    boxes.set_xlim(0, len(plan) * (1 + DEPTH[0]))
    rates.set_xlabel("step")
    rates.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    rates.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))
    for axes in (boxes, clips, rates):
        axes.spines[["top", "right"]].set_visible(False)
    if marks:
        rates.set_title("\u25b2 validation", loc="right", fontsize=8)
        places = rates.get_xaxis_transform()
        rates.plot(
            marks, [0.04] * len(marks), "^", transform=places, color=TEXT, ms=5, clip_on=False
        )
    for start in _stage_starts(plan)[1:]:
        for axes in (clips, rates):
            axes.axvline(start, color=GRID, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)


def _colours(plan: Plan) -> dict[Shape, str]:
    """A green for each base shape and short-cycle shape, darker with its pixels."""
    sizes = {short.shape.num_pixels for phase in plan.phases for short in phase.base.short_cycle}
    order = sorted(sizes)
    shade = {size: 0.25 + 0.5 * (i + 1) / len(order) for i, size in enumerate(order)}
    return {
        short.shape: to_hex(colormaps["Greens"](shade[short.shape.num_pixels]))
        for phase in plan.phases
        for short in phase.base.short_cycle
    }


def _stage_starts(plan: Plan) -> list[int]:
    """The first step of every learning-rate stage."""
    first: dict[int, int] = {}
    for phase in plan.phases:
        first.setdefault(phase.stage, phase.first_step)
    return list(first.values())


def _draw_boxes(axes: Axes, plan: Plan, colours: Mapping[Shape, str]) -> None:
    full = plan.baseline.shape
    top = full.height * HEADROOM
    for phase in plan.phases:  # from left to right: a box hides what lies behind it
        shape = phase.base.shape
        back = (
            DEPTH[0] * len(plan) * shape.frames / full.frames,
            DEPTH[1] * top * shape.frames / full.frames,
        )
        _draw_box(axes, phase, back, colours)
        _label_box(axes, phase, colours, steps=len(plan))
    starts = [*_stage_starts(plan), len(plan)]
    for stage, (start, end) in enumerate(pairwise(starts), 1):
        if len(starts) == 2:
            break  # a single stage needs no name
        inches = AXES_INCHES * (end - start) / len(plan)
        tuned = any(p.kind == "fine-tuning" and p.stage == stage - 1 for p in plan.phases)
        label = f"stage {stage}" if inches > 0.5 else str(stage)
        if tuned and inches > 0.7:
            label += "\nfine-tuning"
        if inches > 0.12:
            middle = (start + end) / 2
            axes.text(middle, top * 0.97, label, ha="center", va="top", linespacing=1.1)
    axes.set_ylim(0, top)
    heights = {short.shape.height for p in plan.phases for short in p.base.short_cycle}
    axes.yaxis.set_major_locator(FixedLocator(sorted(heights)))
    axes.set_ylabel("clip: height in pixels,\ndepth for frames")
    axes.spines["left"].set_bounds(0, full.height)
    if any(len({short.shape.height for short in p.base.short_cycle}) > 1 for p in plan.phases):
        axes.set_title("bands: what the short cycle visits", loc="right", fontsize=8)


def _draw_box(
    axes: Axes, phase: Phase, back: tuple[float, float], colours: Mapping[Shape, str]
) -> None:
    start, end, height = phase.first_step, phase.end_step, phase.base.shape.height
    right, up = back
    line: Any = {"edgecolor": EDGE, "linewidth": 0.7, "joinstyle": "round"}
    face = colours[phase.base.shape]
    lid = [(start, height), (end, height), (end + right, height + up), (start + right, height + up)]
    side = [(end, 0), (end + right, up), (end + right, height + up), (end, height)]
    axes.add_patch(Polygon(lid, facecolor=face, alpha=1, **line))
    axes.add_patch(Polygon(lid, facecolor="white", alpha=0.45, linewidth=0))
    axes.add_patch(Polygon(side, facecolor=face, **line))
    axes.add_patch(Polygon(side, facecolor="black", alpha=0.25, linewidth=0))
    visited = {short.shape.height: short.shape for short in phase.base.short_cycle}
    for visited_height, shape in sorted(visited.items(), reverse=True):
        axes.add_patch(
            Rectangle((start, 0), end - start, visited_height, facecolor=colours[shape], **line)
        )


def _label_box(axes: Axes, phase: Phase, colours: Mapping[Shape, str], *, steps: int) -> None:
    """T x H x W on the box, upright if the box is too short for it, or not at all."""
    shape = phase.base.shape
    inches = AXES_INCHES * phase.steps / steps
    if inches < 0.14:
        return
    axes.text(
        (phase.first_step + phase.end_step) / 2,
        shape.height * 0.05,
        _sizes(shape, phase.base.token_share),
        ha="center",
        va="bottom",
        rotation=0 if inches > 0.8 else 90,
        fontsize=8 if shape.height == shape.width else 7,
        color=_ink(colours[min(short.shape for short in phase.base.short_cycle)]),
    )


def _ink(background: str) -> str:
    red, green, blue = to_rgb(background)
    return "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else EDGE


def _sizes(shape: Shape, token_share: float) -> str:
    kept = "" if token_share == 1 else f", {token_share:.0%} of tokens"
    if shape.height == shape.width:
        return f"{shape.frames} {TIMES} {shape.height}²{kept}"
    return f"{shape.frames} {TIMES} {shape.height} {TIMES} {shape.width}{kept}"


def _draw_batches(
    axes: Axes, plan: Plan, colours: Mapping[Shape, str], *, batches: list[int]
) -> None:
    least, most = batches[0], batches[-1]
    for phase in plan.phases:
        visited = {short.batch_size: short.shape for short in phase.base.short_cycle}
        for batch_size, shape in sorted(visited.items(), reverse=True):
            bar = Rectangle(
                (phase.first_step, least / 2),
                phase.steps,
                batch_size - least / 2,
                facecolor=colours[shape],
                edgecolor=EDGE,
                linewidth=0.7,
            )
            axes.add_patch(bar)
    axes.set_yscale("log", base=2)
    axes.set_ylim(least / 2, most * 1.25)
    doubled = [least << power for power in range((most // least).bit_length())]
    ticks = batches if len(batches) <= 6 else doubled
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda clips, _: f"{clips:,.0f}"))
    axes.set_ylabel("clips of a step")


def _draw_rates(axes: Axes, plan: Plan) -> None:
    steps = sorted(
        {
            min(phase.end_step - 1, phase.first_step + phase.steps * i // 50)
            for phase in plan.phases
            for i in range(51)
        }
        | {plan.warmup_steps}
    )
    rates = [plan[step].learning_rate for step in steps]
    highest = max(rates)
    axes.plot(steps, [max(rate, highest * 1e-9) for rate in rates], color=ACCENT, linewidth=1.8)
    axes.set_yscale("log")
    lowest = min((rate for rate in rates if rate > highest * 1e-4), default=highest)
    axes.set_ylim(lowest / 1.6, highest * 1.6)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("learning rate")
    axes.grid(axis="y", color=GRID, alpha=0.35, linewidth=0.6)
