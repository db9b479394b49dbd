"""The tables of what the study's schedules save, as Markdown.

In: the values of docs/results/study.json. Out: a text for each table, which docs/draw_results.py
writes into the pages.
"""

from __future__ import annotations

from typing import Any

from markdown_table import table

_SHARES = {0.56: "five ninths", 0.376: "three eighths"}
"""Of the baseline's steps, in which the recipes plan to come to its top-1."""
_COSTS = {
    "seconds": "seconds",
    "seconds_with_decoding": "with decoding",
    "multiply_adds": "multiply-adds",
    "steps": "steps",
}

NAMED = ("paper", "pass", "anneal", "anneal-retuned", "tokens")
"""Schedules with a name, the anneal that is tuned at each length, and the one that drops tokens."""

SCORES = ("top1", "loss")

Row = dict[str, Any]


def iso_table(values: Row, titles: dict[str, str]) -> str:
    """Savings at the whole baseline's result, by top-1 and by loss, in each cost."""
    lines = []
    for row in values["iso"]:
        found = [row[score].get(cost) for score in SCORES for cost in _COSTS]
        runs = next((_runs(each) for each in found if each), "0")
        cells = " | ".join(_saving(each) for each in found)
        title = titles[row["method"]]
        if "against" in row:
            title += f" (over {titles[row['against']]})"
        lines.append(f"{task_name(row)} | {title} | {runs} | {cells}")
    costs = " | ".join(_COSTS.values())
    return table(
        f"task | method | runs | top-1: {costs} | loss: {costs}",
        "llr" + 2 * len(_COSTS) * "r",
        lines,
    )


def cpu_table(values: Row, titles: dict[str, str]) -> str:
    """Savings in multiply-adds by all runs, and by those of CPUs alone, of tasks that have both."""
    every = {(task_name(row), row["method"]): row for row in values["iso"]}
    lines = []
    for row in values["iso_cpu"]:
        if row["method"] in NAMED:
            both = (every[task_name(row), row["method"]], row)
            cells = [_saving(each[score].get("multiply_adds")) for score in SCORES for each in both]
            title = titles[row["method"]]
            lines.append(f"{task_name(row)} | {title} | {' | '.join(cells)}")
    return table(
        "task | method | top-1: all runs | of CPUs alone | loss: all runs | of CPUs alone",
        "llrrrr",
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
    """What the anneal has to reach, its shortest run that did, and its savings by top-1.

    The baseline's top-1 is that of the same seeds and folds as the anneal's.
    """
    lines = []
    baselines = _baselines(values)
    costs = ("seconds", "seconds_with_decoding", "multiply_adds")
    for row in values["iso"]:
        found = [row["top1"].get(cost) for cost in costs]
        if row["method"] == "anneal" and any(each and each["cells"] > 1 for each in found):
            runs = next(_runs(each) for each in found if each)
            whole, run = baselines[task_name(row), 1], _shortest_there(values, task_name(row))
            shown = f"{100 * whole['top1']:.1f} | - | - | -"
            if run is not None:
                saved = whole["multiply_adds"] / run["multiply_adds"]
                shown = (
                    f"{100 * run['whole_baseline']['top1']:.1f} | {100 * run['top1']:.1f} "
                    f"| {run['steps']:,} of {whole['steps']:,} | {saved:.1f}x"
                )
            cells = " | ".join(_saving(each) for each in found)
            lines.append(f"{task_name(row)} | {runs} | {shown} | {cells}")
    return table(
        "task | runs | whole baseline's top-1 | anneal's | in steps | fewer multiply-adds | "
        f"between lengths: {' | '.join(_COSTS[cost] for cost in costs)}",
        "lrrrrrrrr",
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
    anneals = [row for row in values["iso"] if row["method"] == "anneal" and "steps" in row["top1"]]
    longest, shorter = _SHARES
    sets = len({row["dataset"] for row in anneals})
    surely = _within(anneals, longest, "low")
    average = [each for each in _within(anneals, longest, "factor") if each not in surely]
    short = [task_name(row) for row in anneals if task_name(row) not in surely + average]
    parts = [
        f"In {_SHARES[longest]} of a tuned baseline's steps or fewer, `anneal` came to its top-1 "
        f"in {len(surely)} of {len(anneals)} tasks on {sets} sets of videos, by more than 97% of "
        f"the resamples of folds, and of seeds where there are several"
        + (f": {', '.join(surely)}" if surely else ""),
        f"in {_SHARES[shorter]} or fewer in {len(_within(anneals, shorter, 'low'))} of these",
    ]
    if average:
        parts.append(f"on average, but in fewer resamples, it did in {', '.join(average)}")
    if short:
        parts.append(f"it stayed below in {', '.join(short)}")
    return f"{'; '.join(parts)}."


def _within(rows: list[Row], share: float, end: str) -> list[str]:
    """The tasks of the rows whose saving in steps, or an end of its interval, is as large."""
    return [task_name(row) for row in rows if (row["top1"]["steps"][end] or 0) >= 1 / share]


def regimes_table(values: Row, titles: dict[str, str]) -> str:
    """Where a schedule wins, where it loses, and where neither can be said yet."""
    lines = []
    for row in values["iso"]:
        if row["method"] not in NAMED or row["method"] == "anneal-retuned":
            continue
        points = [
            point
            for point in values["points"]
            if (task_name(point), point["method"]) == (task_name(row), row["method"])
        ]
        cells = [_verdict(row[score].get("multiply_adds")) for score in SCORES]
        for score in SCORES:
            sign = 1 if score == "top1" else -1
            gains = [point["gain"][score] for point in points if point["gain"].get(score)]
            ends = [
                sorted(sign * end for end in (low, high))
                for _, low, high, _ in gains
                if low is not None
            ]
            ahead = sum(low > 0 for low, _ in ends)
            behind = sum(high < 0 for _, high in ends)
            said = ", ".join(
                f"{verb} {number}"
                for verb, number in (("wins", ahead), ("loses", behind))
                if number
            )
            cells.append(f"{said or 'open'} of {len(ends)}" if ends else "not compared")
        runs = next((_runs(found) for found in row["top1"].values() if found), "0")
        lines.append(f"{task_name(row)} | {titles[row['method']]} | {runs} | {' | '.join(cells)}")
    return table(
        "task | schedule | runs | the baseline's top-1 with less | its loss with less | "
        "top-1 in the same time, lengths | loss",
        "llrllll",
        lines,
    )


def _verdict(found: Row | None) -> str:
    """Of a saving at the whole baseline's score, by its 95% interval."""
    if found is None or found["cells"] == 1:
        return "open"
    if (found["low"] or 0) > 1:
        return "wins"
    if found["reached"] < 0.025 or (found["high"] is not None and found["high"] < 1):
        return "loses"
    return "open"


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
    rarely = f" in {found['reached']:.0%}" if found["low"] is None and found["cells"] > 1 else ""
    if found["factor"] is None:
        return f"not reached (< {found['bound']:.1f}x{f'; reached{rarely}' if rarely else ''})"
    sign = "> " if found["at_least"] else ""
    if found["cells"] == 1:
        return f"{sign}{found['factor']:.1f}x"
    low = "-" if found["low"] is None else f"{found['low']:.1f}"
    high = "-" if found["high"] is None else f"{found['high']:.1f}"
    return f"{sign}{found['factor']:.1f}x [{low}, {high}]{rarely}"


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
