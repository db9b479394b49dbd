"""A run folder as a report reads it: its steps, its validations, and what had been spent by each.

In: a run folder, complete or not. Out: a RunRecord. Seconds are those of training, validations and
checkpoints left out; multiply-adds are those of the clips' forward passes, as counted on the run's
own model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vcycle.data.json_lines import RESTORE, read_object, read_rows, wrong_number
from vcycle.schedule.messages import shortened
from vcycle.schedule.shape import clip_name

_ROUNDING = 1e-6
"""Accuracies are kept in single precision, in which 0.9 is a little less."""


@dataclass(frozen=True)
class Point:
    """A validation: what was reached, in [0, 1], and what was spent until then."""

    accuracy: float
    steps: int
    clips: int
    seconds: float
    multiply_adds: float | None


@dataclass(frozen=True)
class RunRecord:
    """What a run folder says.

    Args:
        folder: as it was named.
        metric: ``top1``, or ``map`` if videos have several labels.
        points: its validations, in order; none if it has not come to the first.
        validation: the identity of its validation videos, and how they are scored.
        steps: the rows of its steps; at least one.
        multiply_adds: of its steps together; None if they were not counted.
        is_complete: whether its last step is done.
    """

    folder: str
    metric: str
    points: tuple[Point, ...]
    validation: dict[str, Any]
    steps: tuple[dict[str, Any], ...]
    multiply_adds: float | None
    is_complete: bool

    @property
    def best(self) -> float:
        """The greatest accuracy of its validations."""
        return max(point.accuracy for point in self.points)

    def check_validated(self) -> None:
        """Raise ValueError if it has not come to its first validation."""
        if not self.points:
            raise ValueError(f"run folder {self.folder}: no validation yet; wait for its first")

    def first_at(self, accuracy: float) -> Point | None:
        """The first validation with at least this accuracy; None if none has."""
        reached = (point for point in self.points if point.accuracy >= accuracy - _ROUNDING)
        return next(reached, None)


def read_run(folder: str | Path) -> RunRecord:
    """Read a run folder.

    Raises ValueError, in one line, if it has no step to read, or other values than a run writes.
    """
    with as_written(folder):
        return _read_run(folder)


@contextmanager
def as_written(*folders: str | Path) -> Iterator[None]:
    """ValueError, in one line, where runs' files turn out to be others than a run writes.

    One that names a folder says what to do already.
    """
    kinds = (LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, ValueError)
    try:
        yield
    except kinds as error:
        if isinstance(error, ValueError) and any(str(each) in str(error) for each in folders):
            raise
        raise ValueError(
            f"run folder {', '.join(map(str, folders))}: its files are not as vcycle train writes "
            f"them ({type(error).__name__}: {error}); give another, or restore them"
        ) from error


def _read_run(folder: str | Path) -> RunRecord:
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"run folder {folder}: no such folder; give one of vcycle train")
    for name in ("dataset.json", "metrics.jsonl", "validation.jsonl"):
        if not (path / name).is_file():
            raise ValueError(
                f"run folder {folder}: no {name} in it; give a folder of vcycle train, or wait if "
                f"it has just begun"
            )
    validation = read_object(path / "dataset.json")["validation"]
    metric = "map" if validation["multi_label"] else "top1"
    steps = read_rows(path / "metrics.jsonl", numbers=("step", "batch_size"))
    if not steps:
        raise ValueError(f"run folder {folder}: no metrics yet; wait for its first steps")
    clips, costs = [0], _costs(path, steps)
    for step in steps:
        clips.append(clips[-1] + step["batch_size"])
    points = []
    numbers = [step["step"] for step in steps]
    rows = read_rows(path / "validation.jsonl", numbers=("step", "seconds"))
    for row in rows:
        if not 0 <= row[metric] <= 1 + _ROUNDING:
            raise ValueError(
                f"run folder {folder}: {metric} {shortened(row[metric], 20)} after step "
                f"{row['step']} in validation.jsonl; take the line out"
            )
        done = bisect_right(numbers, row["step"])
        cost = None if costs is None else costs[done]
        points.append(Point(row[metric], row["step"] + 1, clips[done], row["seconds"], cost))
    return RunRecord(
        folder=str(folder),
        metric=metric,
        points=tuple(points),
        validation=validation,
        steps=tuple(steps),
        multiply_adds=None if costs is None else costs[-1],
        is_complete=(path / "result.json").is_file(),
    )


def _costs(path: Path, steps: list[dict[str, Any]]) -> list[float] | None:
    """Multiply-adds before each step and after the last; None if they were not counted."""
    file = path / "multiply_adds.json"
    of_clip = read_object(file) if file.is_file() else {}
    if wrong := wrong_number(of_clip, of_clip):
        raise ValueError(f"{file}: {wrong}; {RESTORE}")
    total = [0.0]
    for step in steps:
        name = clip_name(step["shape"], step["token_share"])
        if name not in of_clip:
            return None
        total.append(total[-1] + step["batch_size"] * of_clip[name])
    return total


def check_same_videos(runs: list[RunRecord]) -> None:
    """Raise ValueError unless all runs are validated on the same videos and by the same metric.

    And if one is given twice.
    """
    first = runs[0]
    places = [Path(run.folder).resolve() for run in runs]
    for run, place in zip(runs, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"run folder {run.folder}: given more than once; give each run once")
    for run in runs[1:]:
        for name in ("videos_sha256", "parts_sha256", "classes", "multi_label"):
            own = first.validation.get(name)
            other = run.validation.get(name)
            if name == "parts_sha256" and None in (own, other):
                continue  # a run of before this was written
            if other != own:
                alike = [str(each.folder) for each in runs if each.validation.get(name) == own]
                such = f", such as {' '.join(alike)}" if len(alike) > 1 else ""
                raise ValueError(
                    f"{first.folder} and {run.folder}: they are validated on different videos "
                    f"({first.validation['num_videos']} and {run.validation['num_videos']}); "
                    f"give runs of one manifest{such}"
                )
