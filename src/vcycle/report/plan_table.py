"""A plan as text: a row for every phase, the short cycle of every base shape, and the totals.

In: a plan. Out: lines of plain text, for 80 columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vcycle.schedule.base_shapes import BaseShape
from vcycle.schedule.cost import BatchMemory, Cost
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import clip_name


def plan_table(plan: Plan, costs: Mapping[str, Cost], memory: Sequence[BatchMemory] = ()) -> str:
    """All of the text; ``costs`` are totals to show besides steps, epochs and clips.

    ``memory`` adds to the short cycle which batches fit.
    """
    parts = [_phase_table(plan), _short_cycle_table(plan, memory), _totals(plan, costs)]
    return "\n\n".join(part for part in parts if part)


def _phase_table(plan: Plan) -> str:
    heading = ("stage", "phase", "kind", "shape", "batch", "steps", "epochs", "rate")
    rows: list[Sequence[str] | None] = []
    previous_stage = 0
    for number, phase in enumerate(plan.to_dict()["phases"], 1):
        if phase["stage"] != previous_stage:
            rows.append(None)
        previous_stage = phase["stage"]
        rows.append(
            (
                str(phase["stage"] + 1),
                str(number),
                phase["kind"],
                clip_name(phase["shape"], phase["token_share"]),
                f"{phase['batch_size']:,}",
                f"{phase['steps']:,}",
                f"{phase['epochs']:.1f}",
                _rate(phase["learning_rate"], phase["last_learning_rate"]),
            )
        )
    group = plan.multigrid.norm_group
    groups = "No norm groups" if group is None else f"Norm groups of {group} clips"
    return f"{_align(heading, rows, left=(2, 3))}\n\n{groups}."


def _rate(first: float, last: float) -> str:
    return f"{first:.4g}" if first == last else f"{first:.3g} to {last:.3g}"


def _short_cycle_table(plan: Plan, memory: Sequence[BatchMemory]) -> str:
    """What each base shape's short cycle visits; empty if there is nothing to say."""
    bases: dict[BaseShape, None] = dict.fromkeys(phase.base for phase in plan.phases)
    period = max(len(base.short_cycle) for base in bases)
    if period == 1 and not memory:
        return ""
    fits = {(row.shape, row.token_share, row.batch_size): _fits(row) for row in memory}
    rows = []
    for base in bases:
        for position, short in enumerate(base.short_cycle):
            cells = (
                clip_name(base.shape, base.token_share) if position == 0 else "",
                str(position),
                clip_name(short.shape, short.token_share),
                f"{short.batch_size:,}",
                _or_dash(short.norm_group),
            )
            # A run too short for a full cycle leaves some shapes out.
            kind = short.shape, short.token_share, short.batch_size
            rows.append((*cells, fits.get(kind, "-")) if memory else cells)
    heading = ("base shape", f"step mod {period}", "shape", "clips", "norm group")
    return "The short cycle:\n" + _align(
        (*heading, "fits, clips of a device") if memory else heading, rows, left=(0, 2)
    )


def _fits(row: BatchMemory) -> str:
    """Whether a batch fits; else how many clips a device could take at once."""
    if row.fits:
        return "yes"
    return "no" if row.micro_batch is None else f"{row.micro_batch:,} at a time"


def _totals(plan: Plan, costs: Mapping[str, Cost]) -> str:
    rows = [
        ("steps", f"{len(plan):,}", f"{plan.baseline.steps:,}", f"{plan.step_reduction:.2f}x"),
        *(
            (name, _large(each.plan), _large(each.baseline), times_less(each.reduction))
            for name, each in costs.items()
        ),
        ("epochs", f"{plan.epochs:.1f}", f"{plan.baseline.epochs:.1f}", _more(plan)),
        ("clips", f"{plan.num_clips:,}", f"{plan.baseline.num_clips:,}", _more(plan)),
    ]
    return _align(("total", "plan", "baseline", "reduction"), rows, left=(0,))


def times_less(reduction: float) -> str:
    """How many times less, or as many if it is more, such as frames to decode."""
    return f"{reduction:.2f}x" if reduction >= 1 else f"{1 / reduction:.2f}x as many"


def _more(plan: Plan) -> str:
    return f"{plan.num_clips / plan.baseline.num_clips:.2f}x as many"


def _large(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value < 1e9 else f"{value:.3g}"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _align(
    heading: Sequence[str], rows: Iterable[Sequence[str] | None], *, left: tuple[int, ...]
) -> str:
    """Columns as wide as their content, the ``left`` ones aligned there; None is an empty line."""
    rows = list(rows)
    filled = [heading, *(row for row in rows if row is not None)]
    widths = [max(len(row[column]) for row in filled) for column in range(len(heading))]
    lines = []
    for row in (heading, ["-" * width for width in widths], *rows):
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row or (), widths, strict=row is not None))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
