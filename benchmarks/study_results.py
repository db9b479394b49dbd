"""The table of a study: rows of its complete runs, and what they say together, as one JSON file.

In: a study's folder, with any number of its runs complete. Out: ``rows``, a row a run; ``points``,
each method's lengths over seeds and folds; ``iso``, how many times less each method costs for the
whole baseline's result, ``iso_cpu`` by the runs of CPUs alone, and ``iso_controls`` for that of a
control; ``same_steps``, what a method gains in as many steps as a baseline; ``steps``, the timed
mini-batches; the machine and versions.
The order in which runs were done leaves no trace in it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from study_file import Method, Run, Study, Task
from study_iso import Cell, Curve, Gain, gain_at_equal_cost, gain_at_equal_length, iso_speedup
from study_provenance import is_of_cpu
from study_runs import StudyFolder
from study_summary import summary_lines
from study_timing import seconds_of, timed_alike
from vcycle.data.atomic import write_atomic

COSTS = ("seconds", "seconds_with_decoding", "multiply_adds", "steps")
PACKAGES = ("torch", "av", "numpy", "lightning-fabric")

Row = dict[str, Any]


def collect(folder: StudyFolder, file: Path) -> None:
    """Write the table of all complete runs."""
    study = folder.study
    steps = sorted(folder.steps(), key=json.dumps)
    rows = [row for run in study.runs() if (row := _row(folder, run, steps)) is not None]
    rows.sort(key=_place)
    left = len([run for run in folder.left(study.runs()) if folder.row(run) is None])
    values = {
        "study": study.name,
        "runs": len(rows) + left,
        "complete": len(rows),
        "versions": {name: version(name) for name in PACKAGES},
        **summary(study, rows),
        "steps": steps,
        "quiet": sorted(folder.quiet(), key=json.dumps),
        "rows": rows,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(values, indent=1) + "\n")
    for line in summary_lines(study, values):
        print(line)
    print(f"{file}: {len(rows)} of {len(rows) + left} runs")


def summary(study: Study, rows: list[Row]) -> Row:
    """What the rows say together, by its name in the file.

    ``iso_cpu`` are the savings in tasks that GPUs took part in, by the other runs.
    """
    iso, iso_cpu, iso_controls, lengths, points, same = [], [], [], [], [], []
    for task in study.tasks:
        here = [row for row in rows if task.has(row) and row["role"] == "final"]
        on_cpu = [row for row in here if is_of_cpu(row)]
        for method in study.methods:
            if method.name in task.methods:
                iso += _iso(study, task, method.name, here)
                if len(on_cpu) < len(here):
                    iso_cpu += _iso(study, task, method.name, on_cpu)
                if method.controls is not None:
                    iso_controls += _over_control(study, task, method.name, here, method.controls)
                if method.rate_of is None:
                    lengths += _by_length(study, task, method.name, here)
                points += _points(study, task, method.name, here)
                same += _same_steps(study, method, here)
    savings = {"iso": iso, "iso_cpu": iso_cpu, "iso_controls": iso_controls, "lengths": lengths}
    return {**savings, "points": points, "same_steps": same}


def _iso(study: Study, task: Task, method: str, rows: list[Row]) -> list[Row]:
    """A row for each method that it is compared with, or none without runs.

    The saving in seconds for top-1, and in all other measures. ``speedup`` is None for a method
    that does not reach the score, and where ``reached`` is None, too, for one that was not timed.
    """
    if method == study.baseline.name or not any(row["method"] == method for row in rows):
        return []
    others = study.method(method).against or (study.baseline.name,)
    return [_iso_over(study, task, method, rows, over) for over in others]


def _iso_over(study: Study, task: Task, method: str, rows: list[Row], baseline_name: str) -> Row:
    every: dict[str, dict[str, Row]] = {}
    for score in ("top1", "loss"):
        every[score] = {}
        for cost in COSTS:
            baseline = curve(rows, baseline_name, score=score, cost=cost)
            ours = curve(_with_joined(study, task, rows, method), method, score=score, cost=cost)
            whole = _whole_cost(task, baseline_name, rows, cost)
            if whole is None or not ours.costs:
                continue
            if (found := iso_speedup(baseline, ours, whole=whole)) is not None:
                every[score][cost] = asdict(found)
    main = every["top1"].get("seconds") or {}
    head = {"dataset": task.dataset, "regime": task.regime, "method": method}
    if baseline_name != study.baseline.name:
        head["against"] = baseline_name
    figures = {key: main.get(key) for key in ("low", "high", "at_least", "bound", "reached")}
    return {**head, "speedup": main.get("factor"), **figures, **every}


def _over_control(study: Study, task: Task, control: str, rows: list[Row], of: str) -> list[Row]:
    """What a method saves at its control's whole score, and its ``gains`` over it in equal time."""
    if not any(row["method"] == control for row in rows):
        return []
    lengths = {row["length"]: row for row in rows if row["method"] == of}
    gains = [
        {"length": length, **_gains(task, rows, lengths[length], control, "seconds_with_decoding")}
        for length in sorted(lengths)
    ]
    saving = _iso_over(study, task, of, rows, control)
    return [{**saving, "gains": [gain for gain in gains if "top1" in gain]}]


def _with_joined(study: Study, task: Task, rows: list[Row], method: str) -> list[Row]:
    """The rows of a method, and as its own those of the first length of one that it ``joins``."""
    joins = study.method(method).joins
    if joins is None:
        return rows
    first = (joins, task.first_length(joins))
    return [
        {**row, "method": method} if (row["method"], row["length"]) == first else row
        for row in rows
    ]


def _by_length(study: Study, task: Task, method: str, rows: list[Row]) -> list[Row]:
    """A row for each length of the baseline: the saving in multiply-adds at its scores."""
    if method == study.baseline.name or not any(row["method"] == method for row in rows):
        return []
    own = [row for row in rows if row["method"] == study.baseline.name]
    costs = {row["length"]: row["multiply_adds"] for row in own}
    found = []
    for length in sorted(costs):
        row: Row = {"dataset": task.dataset, "regime": task.regime, "method": method}
        row["baseline_length"] = length
        for score in ("top1", "loss"):
            baseline = curve(rows, study.baseline.name, score=score, cost="multiply_adds")
            joined = _with_joined(study, task, rows, method)
            ours = curve(joined, method, score=score, cost="multiply_adds")
            saving = iso_speedup(baseline, ours, whole=costs[length])
            row[score] = None if saving is None else asdict(saving)
        found.append(row)
    return found


def _points(study: Study, task: Task, method: str, rows: list[Row]) -> list[Row]:
    """Each length: means, and what it gains over a baseline of equal seconds.

    The means are those of its folds, of each the mean of its seeds; deviations are between runs.
    """
    points = []
    lengths = dict.fromkeys(row["length"] for row in rows if row["method"] == method)
    for length in sorted(lengths):
        cells = [row for row in rows if row["method"] == method and row["length"] == length]
        point: Row = {
            **{key: cells[0][key] for key in ("dataset", "regime", "method", "length")},
            **{key: cells[0][key] for key in ("epoch_factor", *COSTS, "decode_seconds")},
            "rate": cells[0]["rate"],
            "runs": len(cells),
            "failed": sum("failed" in row for row in cells),
        }
        for score in ("top1", "loss", "full_shape_top1", "full_shape_loss"):
            values = [row[score] for row in cells if score in row]
            if values:
                point[score] = _mean(cells, score)
                point[f"{score}_deviation"] = statistics.stdev(values) if values[1:] else None
        point["whole_baseline"] = _whole_baseline(study, task, rows, cells)
        point["gain"] = _gains(task, rows, cells[0], study.baseline.name, "seconds")
        over = _last_compared(study, study.method(method))
        point["gain_with_decoding"] = _gains(task, rows, cells[0], over, "seconds_with_decoding")
        if (of := study.method(method).rate_of) is not None:
            point["beside"] = _beside(cells, [row for row in rows if row["method"] == of])
        points.append(point)
    return points


def _beside(cells: list[Row], rows: list[Row]) -> Row:
    """Of a variant and of the method that it varies, at the length of about its cost: the means.

    Over the ``runs`` that both have, [the variant's, the other's]; empty if there are none.
    """
    own = {(row["seed"], row["fold"]): row for row in cells}
    cost = math.log(cells[0]["multiply_adds"])
    nearest = min((abs(math.log(row["multiply_adds"]) - cost) for row in rows), default=None)
    theirs = {
        (row["seed"], row["fold"]): row
        for row in rows
        if abs(math.log(row["multiply_adds"]) - cost) == nearest
    }
    both = sorted(own.keys() & theirs.keys())
    if not both:
        return {}
    sides = [[side[cell] for cell in both] for side in (own, theirs)]
    scores = {score: [_mean(side, score) for side in sides] for score in ("top1", "loss")}
    return {"runs": len(both), **scores}


def _whole_baseline(study: Study, task: Task, rows: list[Row], cells: list[Row]) -> Row:
    """Mean scores of the whole baseline in the same cells; empty unless it has them all."""
    name = study.baseline.name
    whole = {
        (row["seed"], row["fold"]): row
        for row in rows
        if (row["method"], row["length"]) == (name, task.first_length(name))
    }
    pairs = [whole.get((row["seed"], row["fold"])) for row in cells]
    found = [row for row in pairs if row is not None]
    if not found or len(found) < len(cells):
        return {}
    return {score: _mean(found, score) for score in ("top1", "loss")}


def _mean(cells: Iterable[Row], score: str) -> float:
    """Over folds, of each the mean over its seeds."""
    folds: dict[int, list[float]] = {}
    for row in cells:
        folds.setdefault(row["fold"], []).append(row[score])
    return statistics.mean(map(statistics.mean, folds.values()))


def _gains(task: Task, rows: list[Row], row: Row, baseline_name: str, cost: str) -> Row:
    """Of one length over a baseline's curve at equal cost: the Gain in each score."""
    gains: Row = {}
    whole, method = _whole_cost(task, baseline_name, rows, cost), row["method"]
    for score in ("top1", "loss"):
        ours = curve(rows, method, score=score, cost=cost)
        if method == baseline_name or whole is None or row[cost] not in ours.costs:
            continue
        baseline = curve(rows, baseline_name, score=score, cost=cost)
        gain = gain_at_equal_cost(baseline, ours, ours.costs.index(row[cost]), whole=whole)
        if gain is not None:
            gains[score] = _as_scored(gain, score)
    return gains


def _last_compared(study: Study, method: Method) -> str:
    """The last of those that a method is compared with, which has its optimizer, or the study's."""
    return (method.against or (study.baseline.name,))[-1]


def _same_steps(study: Study, method: Method, rows: list[Row]) -> list[Row]:
    """A row for each length of a method that its baseline has run, too: the Gain in each score."""
    over = _last_compared(study, method)
    if method.unit != "steps" or method.name == over:
        return []
    found = []
    for length in sorted({row["length"] for row in rows if row["method"] == method.name}):
        sides = [
            [row for row in rows if (row["method"], row["length"]) == (name, length)]
            for name in (method.name, over)
        ]
        if not sides[1]:
            continue
        row: Row = {key: sides[0][0][key] for key in ("dataset", "regime", "method", "length")}
        row |= {"against": over, "runs": len(sides[0]), "runs_against": len(sides[1])}
        for score in ("top1", "loss"):
            ours, theirs = (_cells(side, score) for side in sides)
            if (gain := gain_at_equal_length(theirs, ours)) is not None:
                row[score] = _as_scored(gain, score)
        found += [row] if "loss" in row else []
    return found


def _as_scored(gain: Gain, score: str) -> Row:
    """Of a loss, of which a lower one is the gain, its difference."""
    scored = gain if score == "top1" else gain.of_loss()
    return {**asdict(scored), "folds": list(scored.folds)}  # as JSON has them


def _cells(rows: Iterable[Row], score: str) -> dict[Cell, float]:
    """The scores of runs by seed and fold; losses negated."""
    cells: dict[Cell, float] = {}
    for row in rows:
        cell: Cell = (row["seed"], row["fold"])
        if "pretraining_rate" in row:  # the weights that it starts from are those of its seed
            cell = (0, (row["fold"], row["seed"]))
        cells[cell] = row[score] if score == "top1" else -row[score]
    return cells


def curve(rows: Iterable[Row], method: str, *, score: str, cost: str) -> Curve:
    """The lengths of a method by their cost; losses negated."""
    points: dict[float, list[Row]] = {}
    for row in rows:
        if row["method"] == method and row[cost] is not None:
            points.setdefault(row[cost], []).append(row)
    costs = sorted(points)
    return Curve(tuple(costs), tuple(_cells(points[each], score) for each in costs))


def _whole_cost(task: Task, name: str, rows: Iterable[Row], cost: str) -> float | None:
    """Of the whole baseline, or of the method ``name`` that stands for it."""
    for row in rows:
        if (row["method"], row["length"]) == (name, task.first_length(name)):
            found: float | None = row[cost]
            return found
    return None


def _row(folder: StudyFolder, run: Run, timed: list[Row]) -> Row | None:
    """A complete run's row, with the seconds of its plan on an idle machine."""
    row = folder.row(run)
    if row is None:
        return None
    config = folder.study.config_of(run, rate=row["rate"])
    seconds = seconds_of(config, timed_alike(folder.study, run, timed))
    steps_alone, decoding = seconds["seconds"], seconds["decode_seconds"]
    both = None if steps_alone is None or decoding is None else steps_alone + decoding
    return {**row, **seconds, "seconds_with_decoding": both}


def _place(row: Row) -> tuple[Any, ...]:
    keys = (row[key] for key in ("dataset", "regime", "method", "length", "role"))
    return (*keys, row["seed"], -1 if row["fold"] is None else row["fold"], row["rate"])
