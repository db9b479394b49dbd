"""What runs took to reach an accuracy: seconds, steps, clips and multiply-adds.

In: run folders. Out: a row for each run, at its first validation with at least that accuracy;
nothing between validations is interpolated, so a run may have been there earlier, by up to the
distance from the validation before. How many times less than the first run it took, if both are
there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vcycle.report.runs import Point, RunRecord, check_same_videos, read_run

COSTS = ("seconds", "steps", "clips", "multiply_adds")


def compare_runs(
    folders: Sequence[str | Path], *, at_accuracy: float | None = None
) -> dict[str, Any]:
    """Compare runs at an accuracy in [0, 1], by default that of the first run's last validation.

    A run that does not reach it has null costs, and what it spent without. Raises ValueError if
    there are fewer than two runs, one cannot be read, they are validated on different videos, or
    the accuracy is no share.
    """
    if len(folders) < 2:
        raise ValueError("run folders: give at least two to compare")
    if at_accuracy is not None and not 0 < at_accuracy <= 1:
        raise ValueError(f"--at-accuracy {at_accuracy}: give a share above 0 and up to 1, as 0.9")
    runs = [read_run(folder) for folder in folders]
    check_same_videos(runs)
    return comparison(runs, at_accuracy=at_accuracy)


def comparison(runs: Sequence[RunRecord], *, at_accuracy: float | None = None) -> dict[str, Any]:
    """``compare_runs`` of folders that are read. Raises ValueError if one has no validation."""
    for run in runs:
        run.check_validated()
    level = at_accuracy if at_accuracy is not None else runs[0].points[-1].accuracy
    rows = [_row(run, level) for run in runs]
    for row in rows:
        row["times_less"] = {name: _ratio(rows[0][name], row[name]) for name in COSTS}
    return {
        "metric": runs[0].metric,
        "accuracy": level,
        "videos": runs[0].validation["num_videos"],
        "runs": rows,
        "notes": _notes(runs),
    }


def _row(run: RunRecord, level: float) -> dict[str, Any]:
    point = run.first_at(level)
    index = len(run.points) if point is None else run.points.index(point)
    before = run.points[index - 1] if index else None
    costs = {name: None if point is None else getattr(point, name) for name in COSTS}
    return {
        "folder": run.folder,
        "reached": point is not None,
        "accuracy": None if point is None else point.accuracy,
        **costs,
        "validation_before": None if before is None else asdict(before),
        "best": run.best,
        "last": asdict(run.points[-1]),
    }


def _ratio(first: float | None, other: float | None) -> float | None:
    if first is None or other is None or not other:
        return None
    return first / other


def _notes(runs: Sequence[RunRecord]) -> list[str]:
    """Differences that do not forbid a comparison, but that a reader must know."""
    notes = []
    for name, text in (
        ("shape", "clips of {}"),
        ("num_clips", "{} clips a video"),
        ("num_crops", "{} crops a clip"),
    ):
        folders: dict[Any, list[str]] = {}
        for run in runs:
            folders.setdefault(run.validation[name], []).append(run.folder)
        if len(folders) > 1:
            each = (f"{text.format(value)} in {', '.join(of)}" for value, of in folders.items())
            notes.append(f"validations differ: {'; '.join(each)}")
    if any(point.multiply_adds is None for run in runs for point in run.points):
        notes.append("multiply-adds of a run's model could not be counted")
    return notes


def comparison_text(values: dict[str, Any]) -> str:
    """A comparison as a table for a terminal."""
    lines = [f"{values['metric']} {values['accuracy']:.1%} on {values['videos']} videos"]
    table = [["", *(name.replace("_", "-") for name in COSTS)]]
    for number, row in enumerate(values["runs"]):
        ratios = row["times_less"] if number else dict.fromkeys(COSTS)
        cells = [comparison_cell(row[name], ratios[name]) for name in COSTS]
        last = Point(**row["last"])
        missed = (
            f"not reached: at best {row['best']:.1%} in {last.steps:,} steps, {last.seconds:,.1f} s"
        )
        table.append([row["folder"], *(cells if row["reached"] else [missed])])
    width = max(len(folder) for folder, *_ in table)
    columns = zip(*(cells for _, *cells in table if len(cells) > 1), strict=True)
    widths = [max(map(len, column)) for column in columns]
    for folder, *cells in table:
        shown = cells if len(cells) == 1 else map(str.rjust, cells, widths)
        lines.append(f"{folder:<{width}}  {'  '.join(shown)}")
    lines += [f"note: {note}" for note in values["notes"]]
    return "\n".join(lines)


def comparison_cell(value: float | None, times_less: float | None) -> str:
    """A cost, and how many times less or more it is than the first run's."""
    if value is None:
        return "not counted"
    text = f"{value:.3g}" if value >= 1e6 else f"{round(value, 1):,}"
    if not times_less or not math.isfinite(times_less):
        return text
    if times_less < 1:
        return f"{text} ({1 / times_less:.2f}x as much)"
    return f"{text} ({times_less:.2f}x less)"
