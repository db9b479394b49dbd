"""The tables of what the study's schedules save, as Markdown.

In: the values of docs/results/study.json. Out: a text for each table, which docs/draw_results.py
writes into the pages.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

from markdown_table import table

COSTS = {
    "seconds": "seconds",
    "seconds_with_decoding": "with decoding",
    "multiply_adds": "multiply-adds",
    "steps": "steps",
}

NAMED = ("paper", "pass", "anneal", "anneal-retuned", "tokens")
"""Schedules with a name, the anneal that is tuned at each length, and the one that drops tokens."""
CONTROLS = ("small", "progressive", "long-only", "short-only", "paper-steps")

SCORES = ("top1", "loss")

_T_OF_THREE = 4.303
"""Student's t at 97.5%, two degrees of freedom: of an interval over three folds."""

Row = dict[str, Any]


def iso_table(values: Row, titles: dict[str, str]) -> str:
    """Savings at the whole baseline's result, by top-1 and by loss, in each cost."""
    lines = []
    for row in values["iso"]:
        found = [row[score].get(cost) for score in SCORES for cost in COSTS]
        runs = next((runs_text(each) for each in found if each), "0")
        cells = " | ".join(saving_text(each) for each in found)
        title = titles[row["method"]]
        if "against" in row:
            title += f" (over {titles[row['against']]})"
        lines.append(f"{task_name(row)} | {title} | {runs} | {cells}")
    costs = " | ".join(COSTS.values())
    return table(
        f"task | method | runs | top-1: {costs} | loss: {costs}",
        "llr" + 2 * len(COSTS) * "r",
        lines,
    )


def cpu_table(values: Row, titles: dict[str, str]) -> str:
    """Savings in multiply-adds by all runs, and by those of CPUs alone, of tasks that have both."""
    every = {(task_name(row), row["method"]): row for row in values["iso"] if "against" not in row}
    lines = []
    for row in values["iso_cpu"]:
        if row["method"] in (*NAMED, "baseline-muon", "anneal-muon") and "against" not in row:
            both = (every[task_name(row), row["method"]], row)
            cells = [
                saving_text(each[score].get("multiply_adds")) for score in SCORES for each in both
            ]
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
    baselines = baselines_of(values)
    for row in values["lengths"]:
        found = row["top1"]
        if row["method"] in NAMED and found and not _is_censored(found):
            length = row["baseline_length"]
            lines.append(
                f"{task_name(row)} | {titles[row['method']]} | {length:g} "
                f"| {100 * baselines[task_name(row), length]['top1']:.1f} | {runs_text(found)} "
                f"| {saving_text(found)} | {saving_text(row['loss'])}"
            )
    return table(
        "task | method | baseline's length | its top-1 | runs | "
        "top-1: multiply-adds | loss: multiply-adds",
        "llrrrrr",
        lines,
    )


def equal_table(
    values: Row, titles: dict[str, str], *, methods: Sequence[str], with_decoding: bool = False
) -> str:
    """What each length of the methods gains over the baseline in the same seconds.

    With decoding counted the baseline is that of the method's optimizer.
    """
    gain, cost = (
        ("gain_with_decoding", "seconds_with_decoding") if with_decoding else ("gain", "seconds")
    )
    lines = []
    for point in values["points"]:
        gains = [gain_text(point[gain].get(score), score, runs=point["runs"]) for score in SCORES]
        if point["method"] in methods and any(gains):
            lines.append(
                f"{task_name(point)} | {titles[point['method']]} | {point['steps']:,} "
                f"| {seconds_text(point[cost])} | {point['runs']} "
                f"| {score_text(point, 'top1')} | {gains[0]} | {gains[1]}"
            )
    return table(
        "task | schedule | steps | seconds | runs | top-1 | gain in top-1 | gain in loss",
        "llrrrrrr",
        lines,
    )


def equal_with_decoding(values: Row) -> str:
    """How often the anneal is ahead of a baseline of as many seconds, decoding counted."""
    lines, one_seed, two_lengths = [], 0, 0
    for method, optimizer in (("anneal", "AdamW or SGD"), ("anneal-muon", "Muon")):
        compared = _compared(values, method)
        gains = [each["gain_with_decoding"]["top1"] for each in compared]
        above, surely = ahead(gains)
        in_all, by_t, in_hundred = _chances(compared)
        lines.append(
            f"{optimizer} | {len({task_name(each) for each in compared})} "
            f"| {above} of {len(gains)} | {100 * min(gain['mean'] for gain in gains):+.1f} points "
            f"| {surely} | {in_all} | {by_t} | {in_hundred} in 100"
        )
        one_seed += sum(each["runs"] <= 3 for each in compared)
        two_lengths += sum(gain["lengths"] == 2 for gain in gains)
    beyond = _beyond_their_baselines(values)
    times = [_with_decoding(each) / _with_decoding(longest) for each, longest in beyond]
    behind = [100 * (longest["top1"] - each["top1"]) for each, longest in beyond]
    below = [f"{points:.1f}" for points in behind if points > 0]
    lengths = table(
        "optimizer | tasks | lengths with the higher mean top-1 | least gain "
        "| of these, 95% interval above zero | ahead in each of the three folds "
        "| t interval over the folds above zero | all ahead by chance",
        "lrrrrrrr",
        lines,
    )
    return (
        f"How often the anneal was ahead of a baseline of as many seconds, decoding of frames that "
        f"stay in memory counted on both sides:\n\n{lengths}\n\n"
        f"Of these lengths {one_seed} have one seed, {two_lengths} have a baseline of two lengths "
        f"only, and those of a task share it. They share their folds, too, and so are fewer "
        f"findings than lengths. The last column is how often chance alone would put all of them "
        f"ahead, if each fold's gain were as likely to be a loss, in all tasks of a set together."
        f"\n\n{len(beyond)} lengths cost {min(times):.2f} to {max(times):.2f} times as much as the "
        f"longest baseline: {len(below)} of them ended below it, by {' and '.join(below)} points."
    )


def equal_in_short(values: Row) -> str:
    """At how many lengths the anneal was ahead of a baseline of as many seconds, with decoding."""
    texts = []
    for method, optimizer in (("anneal", "AdamW or SGD"), ("anneal-muon", "Muon")):
        gains = [point["gain_with_decoding"]["top1"] for point in _compared(values, method)]
        above, surely = ahead(gains)
        texts.append(
            f"{above} of {len(gains)} lengths under {optimizer} ({surely} by intervals above zero)"
        )
    beyond = _beyond_their_baselines(values)
    below = sum(longest["top1"] > each["top1"] for each, longest in beyond)
    return (
        f"- **Equal time**: beside the line through baselines of other lengths, decoding counted, "
        f"the anneal's mean was ahead at {' and '.join(texts)}. These lengths share folds and "
        f"baselines ([each of them](docs/which_schedule.md#at-equal-time)). {len(beyond)} longer "
        f"ones took more time than any baseline: {below} of them ended below it."
    )


def _compared(values: Row, method: str) -> list[Row]:
    """The lengths of a method that have a baseline of as many seconds, decoding counted."""
    own = (point for point in values["points"] if point["method"] == method)
    return [point for point in own if "top1" in point["gain_with_decoding"]]


def ahead(gains: Iterable[Row]) -> tuple[int, int]:
    """How many gains are above zero, and how many by their whole interval."""
    found = list(gains)
    surely = sum(gain["low"] is not None and gain["low"] > 0 for gain in found)
    return sum(gain["mean"] > 0 for gain in found), surely


def _beyond_their_baselines(values: Row) -> list[tuple[Row, Row]]:
    under_adamw = beyond_the_longest(values, "anneal", "baseline")
    return under_adamw + beyond_the_longest(values, "anneal-muon", "baseline-muon")


def beyond_the_longest(values: Row, method: str, baseline: str) -> list[tuple[Row, Row]]:
    """Lengths of a method that take longer than the longest of a baseline, which is beside them."""
    longest: dict[str, Row] = {}
    for point in values["points"]:
        if point["method"] == baseline:
            name = task_name(point)
            longest[name] = max(longest.get(name, point), point, key=_with_decoding)
    pairs = [
        (point, longest[task_name(point)])
        for point in values["points"]
        if point["method"] == method and task_name(point) in longest
    ]
    return [pair for pair in pairs if _with_decoding(pair[0]) > _with_decoding(pair[1])]


def _chances(points: list[Row]) -> tuple[int, int, str]:
    """How many gains are above zero in every fold, and how many by a t interval over three folds.

    And how often all would be on average, in a hundred, were each fold's sign in a data set drawn.
    """
    gains = [(point["dataset"], point["gain_with_decoding"]["top1"]["folds"]) for point in points]
    units = sorted({(name, fold) for name, folds in gains for fold in range(len(folds))})
    assert all(len(folds) == 3 for _, folds in gains)  # of which _T_OF_THREE is
    place = {unit: number for number, unit in enumerate(units)}
    ahead = 0
    for signs in product((1, -1), repeat=len(units)):
        drawn = (
            sum(signs[place[name, fold]] * gain for fold, gain in enumerate(folds))
            for name, folds in gains
        )
        ahead += all(each > 0 for each in drawn)
    in_all = sum(min(folds) > 0 for _, folds in gains)
    by_t = sum(
        statistics.mean(folds) > _T_OF_THREE * statistics.stdev(folds) / math.sqrt(3)
        for _, folds in gains
    )
    return in_all, by_t, f"{100 * ahead / 2 ** len(units):.0f}"


def _with_decoding(point: Row) -> float:
    return float(point["seconds_with_decoding"])


def epochs_table(values: Row, titles: dict[str, str]) -> str:
    """The paper's measure: what a schedule saves over a baseline of as many epochs, and over one.

    A baseline of e times the epochs takes e times the steps and seconds of the whole one.
    """
    lines = []
    baselines = baselines_of(values)
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


def runs_text(found: Row) -> str:
    """Runs of the least and the most complete of the lengths that were compared."""
    low, high = found["fewest"], found["cells"]
    return f"{high}" if low == high else f"{low} to {high}"


def saving_text(found: Row | None) -> str:
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


def baselines_of(values: Row) -> dict[tuple[str, float], Row]:
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


def gain_text(gain: Row | None, score: str, *, runs: int, digits_of_loss: int = 2) -> str:
    if gain is None:
        return ""
    scale, digits = (100, 1) if score == "top1" else (1, digits_of_loss)
    values = (gain[name] for name in ("mean", "low", "high"))
    mean, *ends = (f"{scale * value:+.{digits}f}" for value in values if value is not None)
    interval = f" [{', '.join(ends)}]" if ends else ""
    return mean + interval + (f" ({gain['cells']} runs)" if gain["cells"] != runs else "")
