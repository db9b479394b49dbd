"""The tables of what the study's schedules save, as Markdown.

In: the values of docs/results/study.json. Out: a text for each table, which docs/draw_results.py
writes into the pages.
"""

from __future__ import annotations

from typing import Any

from markdown_table import table

_MOST_STEPS = 0.56
"""Over the baseline's, in which a schedule is to come to its top-1."""

NAMED = ("paper", "pass", "anneal", "anneal-retuned", "tokens")
"""Schedules with a name, the anneal that is tuned at each length, and the one that drops tokens."""

SCORES = ("top1", "loss")

Row = dict[str, Any]


def iso_table(values: Row, titles: dict[str, str]) -> str:
    """Savings at the whole baseline's result, by top-1 and by loss, in each cost."""
    lines = []
    for row in values["iso"]:
        found = [
            row[score].get(cost)
            for score in SCORES
            for cost in ("seconds", "multiply_adds", "steps")
        ]
        runs = next((_runs(each) for each in found if each), "0")
        cells = " | ".join(_saving(each) for each in found)
        lines.append(f"{task_name(row)} | {titles[row['method']]} | {runs} | {cells}")
    return table(
        "task | method | runs | top-1: seconds | multiply-adds | steps | "
        "loss: seconds | multiply-adds | steps",
        "llrrrrrrr",
        lines,
    )


def lengths_table(values: Row, titles: dict[str, str]) -> str:
    """Savings at the result of every length of the baseline."""
    lines = []
    baselines = _baselines(values)
    for row in values["lengths"]:
        found = row["top1"]
        if row["method"] in NAMED and found and not _is_censored(found):
            length = row["baseline_length"]
            lines.append(
                f"{task_name(row)} | {titles[row['method']]} | {length:g} "
                f"| {100 * baselines[task_name(row), length]['top1']:.1f} | {_runs(found)} "
                f"| {_saving(found)} | {_saving(row['loss'])}"
            )
    return table(
        "task | method | baseline's length | its top-1 | runs | "
        "top-1: multiply-adds | loss: multiply-adds",
        "llrrrrr",
        lines,
    )


def main_table(values: Row) -> str:
    """What the anneal has to reach, its shortest run that did, and its savings by top-1."""
    lines = []
    baselines = _baselines(values)
    for row in values["iso"]:
        found = [row["top1"].get(cost) for cost in ("seconds", "multiply_adds")]
        if row["method"] == "anneal" and any(each and each["cells"] > 1 for each in found):
            runs = next(_runs(each) for each in found if each)
            whole, run = baselines[task_name(row), 1], _shortest_there(values, task_name(row))
            steps = f"- | {whole['steps']:,}"
            if run is not None:
                saved = whole["multiply_adds"] / run["multiply_adds"]
                steps = f"{100 * run['top1']:.1f} | {run['steps']:,} of {whole['steps']:,}"
            shown = "-" if run is None else f"{saved:.1f}x"
            cells = " | ".join(_saving(each) for each in found)
            top1 = f"{100 * whole['top1']:.1f}"
            lines.append(f"{task_name(row)} | {runs} | {top1} | {steps} | {shown} | {cells}")
    return table(
        "task | runs | whole baseline's top-1 | anneal's | in steps | fewer multiply-adds | "
        "between lengths: seconds | multiply-adds",
        "lrrrrrrr",
        lines,
    )


def longer_baselines(values: Row) -> str:
    """What a baseline of twice the steps gains, and whether the anneal came to that."""
    found = {
        task_name(row): row["top1"]
        for row in values["lengths"]
        if row["method"] == "anneal" and row["baseline_length"] == 2 and row["top1"]
    }
    texts = []
    for (task, length), point in _baselines(values).items():
        if length == 2 and task in found:
            saving = found[task]
            gained = 100 * (point["top1"] - point["whole_baseline"]["top1"])
            reached = (
                f"the anneal came to that with {saving['factor']:.1f} times fewer multiply-adds"
                if saving["factor"]
                else f"no length of the anneal that ran in as many folds came to that, the longest "
                f"of them with {saving['bound']:.1f} times fewer multiply-adds"
            )
            texts.append(f"{gained:.1f} points on {task}, where {reached}")
    return f"A baseline of twice the steps gains {'; and '.join(texts)}." if texts else ""


def _shortest_there(values: Row, task: str) -> Row | None:
    """The shortest length of the anneal whose mean is that of the whole baseline of its runs."""
    points = [
        point
        for point in values["points"]
        if point["method"] == "anneal"
        and task_name(point) == task
        and point["runs"] > 1
        and point["whole_baseline"]
        and point["top1"] >= point["whole_baseline"]["top1"]
    ]
    return min(points, key=lambda point: float(point["steps"]), default=None)


def equal_table(values: Row, titles: dict[str, str]) -> str:
    """What each length of the named schedules gains over the baseline in the same seconds."""
    lines = []
    for point in values["points"]:
        gains = [gain_text(point["gain"].get(score), score, runs=point["runs"]) for score in SCORES]
        if point["method"] in NAMED and any(gains):
            lines.append(
                f"{task_name(point)} | {titles[point['method']]} | {point['steps']:,} "
                f"| {seconds_text(point['seconds'])} | {point['runs']} "
                f"| {score_text(point, 'top1')} | {gains[0]} | {gains[1]}"
            )
    return table(
        "task | schedule | steps | seconds | runs | top-1 | gain in top-1 | gain in loss",
        "llrrrrrr",
        lines,
    )


def headline(values: Row) -> str:
    """In how many tasks the anneal came to the whole baseline's top-1, in how few of its steps."""
    reached: dict[str, list[str]] = {"surely": [], "on average": [], "not": []}
    factors, shown = [], []
    baselines = _baselines(values)
    for row in values["iso"]:
        steps, macs = (row["top1"].get(cost) for cost in ("steps", "multiply_adds"))
        if row["method"] == "anneal" and steps:
            factor, low = ((steps[key] or 0) >= 1 / _MOST_STEPS for key in ("factor", "low"))
            kind = "surely" if low else "on average" if factor else "not"
            reached[kind].append(task_name(row))
            if kind == "surely":
                run = _shortest_there(values, task_name(row))
                assert run is not None, "some length lies above what is reached"
                whole = baselines[task_name(row), 1]["multiply_adds"]
                shown.append(whole / run["multiply_adds"])
                factors.append(macs["factor"])
    average, short = (", ".join(reached[kind]) for kind in ("on average", "not"))
    saved = (
        f": the shortest runs that did have {_range(shown)} times fewer multiply-adds, and between "
        f"lengths it is {_range(factors)} times"
        if factors
        else ""
    )
    others = [f"it did on average, but in fewer resamples, in {average}"] if average else []
    others += [f"it stayed below in {short}"] if short else []
    return (
        f"In five ninths of a tuned baseline's steps or fewer, `anneal` came to its top-1 in "
        f"{len(reached['surely'])} of {sum(map(len, reached.values()))} tasks, by all but a few of "
        f"the resamples of folds, and of seeds where there are several{saved}"
        + "".join(f"; {each}" for each in others)
        + ":"
    )


def epochs_table(values: Row, titles: dict[str, str]) -> str:
    """The paper's measure: what a schedule saves over a baseline of as many epochs, and over one.

    A baseline of e times the epochs takes e times the steps and seconds of the whole one.
    """
    lines = []
    baselines = _baselines(values)
    for point in values["points"]:
        whole = baselines.get((task_name(point), 1))
        if point["method"] not in NAMED or whole is None:
            continue
        epochs = point["epoch_factor"]
        saved = [
            whole[cost] / point[cost] if whole[cost] and point[cost] else None
            for cost in ("steps", "seconds")
        ]
        cells = " | ".join(
            "-" if each is None else f"{times * each:.1f}x"
            for times in (1, epochs)
            for each in saved
        )
        there = point["whole_baseline"]
        lines.append(
            f"{task_name(point)} | {titles[point['method']]} | {epochs:.2f}x | {cells} "
            f"| {100 * point['top1']:.1f} | {_top1(there)}"
        )
    return table(
        "task | schedule | epochs | fewer steps | less time | "
        "at equal epochs: fewer steps | less time | top-1 | whole baseline there",
        "llrrrrrrr",
        lines,
    )


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


def _is_censored(found: Row) -> bool:
    """Whether the shortest run reaches the score and costs about as much as the baseline."""
    return found["at_least"] and found["factor"] < 1.1


def _runs(found: Row) -> str:
    """Runs of the least and the most complete of the lengths that were compared."""
    low, high = found["fewest"], found["cells"]
    return f"{high}" if low == high else f"{low} to {high}"


def _saving(found: Row | None) -> str:
    if found is None:
        return "-"
    if found["factor"] is None:
        return f"not reached (< {found['bound']:.1f}x)"
    sign = "> " if found["at_least"] else ""
    if found["cells"] == 1:
        return f"{sign}{found['factor']:.1f}x"
    low = "-" if found["low"] is None else f"{found['low']:.1f}"
    high = "-" if found["high"] is None else f"{found['high']:.1f}"
    return f"{sign}{found['factor']:.1f}x [{low}, {high}]"


def _top1(scores: Row) -> str:
    return f"{100 * scores['top1']:.1f}" if scores else ""


def _baselines(values: Row) -> dict[tuple[str, float], Row]:
    """The points of the baseline by task and length."""
    return {
        (task_name(point), point["length"]): point
        for point in values["points"]
        if point["method"] == "baseline"
    }


def task_name(row: Row) -> str:
    return f"{row['dataset']}/{row['regime']}"


def seconds_text(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def score_text(point: Row, score: str) -> str:
    if score not in point:
        return "-"
    scale, digits = (100, 1) if score.endswith("top1") else (1, 3)
    deviation = point[f"{score}_deviation"]
    around = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    return f"{scale * point[score]:.{digits}f}{around}"


def gain_text(gain: list[float] | None, score: str, *, runs: int) -> str:
    if gain is None:
        return ""
    scale, digits = (100, 1) if score == "top1" else (1, 2)
    *values, number = gain
    mean, *ends = (f"{scale * value:+.{digits}f}" for value in values if value is not None)
    interval = f" [{', '.join(ends)}]" if ends else ""
    return mean + interval + (f" ({number:g} runs)" if number != runs else "")
