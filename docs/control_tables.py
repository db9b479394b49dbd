"""What of the anneal's gain is its rate's: baselines that have its rate, a pass that has its grids.

In: the values of docs/results/study.json. Out: a text for each mark, which docs/draw_results.py
writes into the pages.
"""

from __future__ import annotations

from markdown_table import table
from savings_tables import Row, ahead, beyond_the_longest, runs_text, saving_text, task_name
from task_tables import finals, mean_scores, scores_text

_PARTS = (
    ("AdamW", "baseline", "baseline-anneal", "anneal"),
    ("Muon", "baseline-muon", "baseline-muon-anneal", "anneal-muon"),
)
"""A baseline along a cosine, one with the anneal's rate, and the anneal: its rate and its grids."""
_LENGTHS = ((0.294, 0.276), (1, 1))
"""Of baselines, and of the anneal beside them: at about their cost, and of as many steps."""


def parts_table(values: Row) -> str:
    """The anneal's rate without its grids, beside neither and both, in the runs that all have.

    And what the anneal saves, of all its seeds, at the top-1 of the whole baseline with its rate.
    """
    savings = {
        (task_name(row), row["against"]): saving_text(row["top1"].get("multiply_adds"))
        for row in values["iso_controls"]
    }
    lines = []
    for optimizer, point, runs, scores in _parts(values):
        cells = " | ".join(scores_text(each) for each in scores)
        saving = savings[task_name(point), point["method"]] if point["length"] == 1 else ""
        head = f"{task_name(point)} | {optimizer} | {point['steps']:,} | {runs}"
        lines.append(f"{head} | {cells} | {saving}")
    return table(
        "task | optimizer | baseline's steps | runs | cosine: top-1 | loss | line: top-1 | loss "
        "| anneal: top-1 | loss | its saving to the line",
        "llrrrrrrrrr",
        lines,
    )


def parts_in_all(values: Row) -> str:
    """How far the three lie apart, by length and optimizer; and the anneal at equal time."""
    lines = []
    for length, steps in zip((short for short, _ in _LENGTHS), ("0.294", "1"), strict=True):
        for is_muon, name in ((False, "AdamW or SGD"), (True, "Muon")):
            found = [
                [top1 for top1, _ in scores]
                for optimizer, point, _, scores in _parts(values)
                if (optimizer == "Muon", point["length"]) == (is_muon, length)
            ]
            if found:
                of_rate = [line - cosine for cosine, line, _ in found]
                of_grids = [anneal - line for _, line, anneal in found]
                above = sum(gain > 0 for gain in of_grids)
                lines.append(
                    f"{steps} | {name} | {_range(of_rate)} | {_range(of_grids)} "
                    f"| {above} of {len(found)}"
                )
    gains = [gain for row in values["iso_controls"] for gain in row["gains"]]
    above, surely = ahead(gain["top1"] for gain in gains)
    points = table(
        "share of the steps | optimizer | line less cosine | anneal less line | anneal above it",
        "rlrrr",
        lines,
    )
    return (
        f"From the least to the most of these tasks, in points of top-1:\n\n{points}\n\n"
        f"{_at_equal_time(values)}. {surely} of these {above} are ahead by intervals above zero, "
        f"which know nothing of how far [such a curve](study.md#the-measure) may lie from "
        f"baselines of the lengths between."
    )


def control_in_short(values: Row) -> str:
    """What the anneal saves over a whole baseline that has its rate, from random weights."""
    texts, runs = [], []
    for optimizer, _, control, _ in _PARTS:
        runs += [
            point["runs"]
            for point in values["points"]
            if (point["method"], point["length"], point["regime"]) == (control, 1, "scratch")
        ]
        found = {
            row["dataset"]: row["top1"]["multiply_adds"]
            for row in values["iso_controls"]
            if (row["against"], row["regime"]) == (control, "scratch")
        }
        saved = [f"{saving_text(row)} on {name}" for name, row in found.items() if row["factor"]]
        short = [name for name, row in found.items() if not row["factor"]]
        said = [*saved, *([f"not reached on {', '.join(short)}"] if short else [])]
        texts.append(f"under {optimizer} {', '.join(said)}")
    of_runs = runs_text({"fewest": min(runs), "cells": max(runs)})
    return (
        f"- **Its rate or its grids?** The anneal's rate is constant and then falls in a line, the "
        f"baselines' falls along a cosine. At the top-1 of a whole baseline with the anneal's "
        f"rate, of {of_runs} runs, the anneal saves in multiply-adds: {'; '.join(texts)}. "
        f"{_at_equal_time(values)} ([each of them](docs/what_was_tried.md#controls))."
    )


def _at_equal_time(values: Row) -> str:
    gains = [gain for row in values["iso_controls"] for gain in row["gains"]]
    above, _ = ahead(gain["top1"] for gain in gains)
    beyond = [
        pair for *_, line, anneal in _PARTS for pair in beyond_the_longest(values, anneal, line)
    ]
    below = sum(longest["top1"] > each["top1"] for each, longest in beyond)
    return (
        f"At equal time, beside the curve through two lengths of such baselines, the anneal was "
        f"ahead at {above} of {len(gains)} lengths; of {len(beyond)} longer ones, which took more "
        f"time, {below} ended below the whole baseline"
    )


def pass_beside(values: Row) -> str:
    """Where the pass, at each length, ended above the anneal and where below."""
    every, gains = finals(values), {}
    for (task, method, length), runs in every.items():
        if method == "pass":
            anneals = every.get((task, "anneal", length), {})
            shared = runs.keys() & anneals.keys()
            own, other = (mean_scores(each, shared) for each in (runs, anneals))
            if own and other:
                gains[task, length] = own[0] - other[0], len(shared)
    others = [
        f"{task} at {length:g} ({100 * gain:+.1f} points, {runs} runs)"
        for (task, length), (gain, runs) in gains.items()
        if gain >= 0
    ]
    most = -100 * min(gain for gain, _ in gains.values())
    return (
        f"`pass` has the anneal's shapes and one rate along a cosine, which is simpler. On the "
        f"same seeds and folds its top-1 was below the anneal's at {len(gains) - len(others)} of "
        f"{len(gains)} lengths of {len({task for task, _ in gains})} tasks, by up to {most:.0f} "
        f"points. It was level or above at the other {len(others)}, here in shares of the "
        f"baseline's steps: {', '.join(others)}."
    )


def _range(gains: list[float]) -> str:
    return " to ".join(f"{100 * gain:+.1f}" for gain in sorted({min(gains), max(gains)}))


def _parts(values: Row) -> list[tuple[str, Row, int, list[tuple[float, float]]]]:
    """Optimizer, a baseline with the anneal's rate, and runs and scores of what all three have."""
    every, parts = finals(values), []
    for optimizer, *methods in _PARTS:
        for point in values["points"]:
            for length, of_anneal in _LENGTHS:
                if (point["method"], point["length"]) == (methods[1], length):
                    lengths = (length, length, of_anneal)
                    runs = [
                        every[task_name(point), method, own]
                        for method, own in zip(methods, lengths, strict=True)
                    ]
                    shared = set.intersection(*map(set, runs))
                    scores = [scored for each in runs if (scored := mean_scores(each, shared))]
                    name = "SGD" if point["regime"] == "sgd" else optimizer
                    parts.append((name, point, len(shared), scores))
    return parts
