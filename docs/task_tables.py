"""What README.md and docs/which_schedule.md say of whole tasks: which schedule wins, by how much.

In: the values of docs/results/study.json. Out: a text for each mark, which docs/draw_results.py
writes into the pages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import mean
from typing import TypeAlias

from markdown_table import table
from savings_tables import (
    COSTS,
    NAMED,
    SCORES,
    Row,
    baselines_of,
    runs_text,
    saving_text,
    task_name,
)

Runs: TypeAlias = Mapping[tuple[int, int], Row]
"""By seed and fold."""

_SHARES = {0.56: "five ninths", 0.376: "three eighths"}
"""Of the baseline's steps, in which the recipes plan to come to its top-1."""
_MOST_LEFT = 2.0
"""Times less than the baseline that a schedule's longest length costs, if it is to lose by it and
not only to fall short."""
_FOLDS = 3
"""Runs of one seed."""
_CYCLES_BESIDE = ((1.5, 0.276), (3, 0.555), (5.42, 1.0))
"""Epochs of the paper's cycles, its own (section 4.1), twice those, and those of all the baseline's
steps; an anneal of their steps."""
_OF_TOKENS = {
    "multiply-adds": (("anneal", 0.276), ("tokens", 0.153), ("tokens-and-grids", 0.191)),
    "steps": (("anneal", 0.276), ("tokens", 0.276), ("tokens-and-grids", 0.276)),
}
"""Ways to coarsen a transformer's clips, at lengths that have as many of these."""


def headline(values: Row) -> str:
    """In how many tasks the anneal came to the whole baseline's top-1, in how few of its steps."""
    anneals = [row for row in values["iso"] if row["method"] == "anneal" and "steps" in row["top1"]]
    cpu = {task_name(row): row for row in values["iso_cpu"] if row["method"] == "anneal"}
    on_cpu = [cpu.get(task_name(row), row) for row in anneals]
    longest, shorter = _SHARES
    one_seed = [task_name(row) for row in anneals if row["top1"]["steps"]["cells"] <= _FOLDS]
    there = _within(anneals, longest, "low")
    surely = [each for each in there if each not in one_seed]
    once = [each for each in there if each in one_seed]
    average = [each for each in _within(anneals, longest, "factor") if each not in there]
    others = [row for row in anneals if task_name(row) not in there + average]
    fewer = [
        f"{task_name(row)} ({factor:.1f}x)"
        for row in others
        if (factor := row["top1"]["steps"]["factor"]) is not None
    ]
    short = [task_name(row) for row in others if row["top1"]["steps"]["factor"] is None]
    tuned = [row for row in values["iso"] if row["method"] == "anneal-retuned"]
    retuned = [each for each in _within(tuned, longest, "factor") if each in short]
    lines = [
        f"`anneal` reached a tuned baseline's top-1 in {_SHARES[longest]} of its steps or fewer, "
        f"which is to save {1 / longest:.1f}x in steps or more,",
        "",
        f"- in {len(surely)} of {len(anneals)} tasks ({_by_set(anneals, surely)}) in more than 97% "
        f"of the resamples, so that the interval begins there or above"
        + (f": {', '.join(surely)}" if surely else "")
        + f". In {_SHARES[shorter]} or fewer it did in {_number(anneals, shorter, surely)} of "
        f"these, by the CPUs' runs alone in {_number(on_cpu, shorter, surely)}",
    ]
    if once:
        lines.append(f"- in as many resamples, but of one seed, in {', '.join(once)}")
    if average:
        lines.append(f"- on average, but in fewer resamples, in {', '.join(average)}")
    if fewer:
        lines.append(f"- not so, but with a smaller saving in steps, in {', '.join(fewer)}")
    if short:
        lines.append(f"- not in {', '.join(short)}")
    if retuned:
        where = "there, too" if retuned == short else f"in {', '.join(retuned)}, too"
        lines[-1] += (
            f" at the rate that another length chose; at one that was chosen for that length, as "
            f"each of the baseline's is, {where}"
        )
    return "\n".join(lines)


def _by_set(rows: list[Row], tasks: list[str]) -> str:
    """Of each set of videos, how many of its tasks are among ``tasks``."""
    counts: dict[str, list[bool]] = {}
    for row in rows:
        counts.setdefault(row["dataset"], []).append(task_name(row) in tasks)
    return ", ".join(f"{sum(each)} of {len(each)} on {name}" for name, each in counts.items())


def _number(rows: list[Row], share: float, tasks: list[str]) -> int:
    """How many of the tasks have a saving in steps whose interval begins there."""
    return sum(each in tasks for each in _within(rows, share, "low"))


def _within(rows: list[Row], share: float, end: str) -> list[str]:
    """The tasks of the rows whose saving in steps, or an end of its interval, is as large."""
    return [task_name(row) for row in rows if (row["top1"]["steps"][end] or 0) >= 1 / share]


def main_table(values: Row) -> str:
    """What the anneal has to reach, its shortest run that did, and its savings by top-1.

    The baseline's top-1 is that of the same seeds and folds as the anneal's.
    """
    lines = []
    baselines = baselines_of(values)
    costs = ("seconds", "seconds_with_decoding", "multiply_adds")
    for row in values["iso"]:
        found = [row["top1"].get(cost) for cost in costs]
        if row["method"] == "anneal" and any(each and each["cells"] > 1 for each in found):
            runs = next(runs_text(each) for each in found if each)
            whole, run = baselines[task_name(row), 1], _shortest_there(values, task_name(row))
            shown = f"{100 * whole['top1']:.1f} | - | - | -"
            if run is not None:
                saved = whole["multiply_adds"] / run["multiply_adds"]
                shown = (
                    f"{100 * run['whole_baseline']['top1']:.1f} | {100 * run['top1']:.1f} "
                    f"| {run['steps']:,} of {whole['steps']:,} ({run['runs']}) | {saved:.1f}x"
                )
            cells = " | ".join(saving_text(each) for each in found)
            lines.append(f"{task_name(row)} | {runs} | {shown} | {cells}")
    return table(
        "task | runs | whole baseline's top-1 | anneal's | in steps (runs) | fewer multiply-adds | "
        f"between lengths: {' | '.join(COSTS[cost] for cost in costs)}",
        "lrrrrrrrr",
        lines,
    )


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


def longer_baselines(values: Row) -> str:
    """What a baseline of twice the steps gains, and whether the anneal came to that, in short."""
    gains, short, texts, factors, sure = [], [], [], [], 0
    for task, (point, saving) in _twice_as_long(values).items():
        dataset, _, regime = task.partition("/")
        if regime != "scratch":
            factors.append(saving["factor"])
            sure += (saving["low"] or 0) > 1
            continue
        gained = 100 * (point["top1"] - point["whole_baseline"]["top1"])
        gains.append(f"{gained:.1f} points on {dataset}")
        if saving["factor"]:
            times, _, interval = saving_text(saving).partition("x ")
            interval, _, reached_in = interval.partition(" in ")
            interval += f" in {reached_in} of the resamples" if reached_in else ""
            texts.append(f"on {dataset} with {times} times fewer multiply-adds {interval}")
        else:
            short.append(dataset)
    there = [factor for factor in factors if factor]
    return (
        f"- **The baselines had not levelled off**: one of [twice the "
        f"steps](docs/which_schedule.md#what-the-recipes-plan), one seed each, gained "
        f"{', '.join(gains)}."
        + (f" The anneal reached that {', and '.join(texts)}." if texts else "")
        + (f" On {', '.join(short)} no length that ran in as many folds did." if short else "")
        + f" In {len(there)} of {len(factors)} other tasks it reached such a baseline with "
        f"{min(there):.1f} to {max(there):.1f} times fewer; the intervals of {len(there) - sure} "
        f"of these include that it saves nothing."
    )


def longer_table(values: Row) -> str:
    """Baselines of twice the steps, and what the anneal took to come to them."""
    anneals = {
        task_name(point): point
        for point in values["points"]
        if (point["method"], point["length"]) == ("anneal", 2)
    }
    lines = []
    for task, (point, saving) in _twice_as_long(values).items():
        scores = [point["whole_baseline"], point, anneals.get(task)]
        shown = " | ".join("-" if each is None else f"{100 * each['top1']:.1f}" for each in scores)
        lines.append(f"{task} | {point['runs']} | {shown} | {saving_text(saving)}")
    return table(
        "task | runs | whole baseline's top-1 | of twice the steps | anneal of twice the steps | "
        "anneal's saving to the longer baseline, multiply-adds",
        "lrrrrr",
        lines,
    )


def _twice_as_long(values: Row) -> dict[str, tuple[Row, Row]]:
    """By task a baseline of twice the steps, and the anneal's saving to its top-1."""
    found = {
        task_name(row): row["top1"]
        for row in values["lengths"]
        if row["method"] == "anneal" and row["baseline_length"] == 2 and row["top1"]
    }
    return {
        task: (point, found[task])
        for (task, length), point in baselines_of(values).items()
        if length == 2 and task in found
    }


def regimes_table(values: Row, titles: dict[str, str]) -> str:
    """Where a schedule wins, where it loses, and where neither can be said yet."""
    lines = []
    for row in values["iso"]:
        if row["method"] not in NAMED or row["method"] == "anneal-retuned":
            continue
        if not any(row["top1"].values()):
            continue  # its baseline has not run
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
                for low, high in ((gain["low"], gain["high"]) for gain in gains)
                if low is not None
            ]
            ahead = sum(low > 0 for low, _ in ends)
            behind = sum(high < 0 for _, high in ends)
            said = ", ".join(
                f"{verb} {number}"
                for verb, number in (("wins", ahead), ("loses", behind))
                if number
            )
            cells.append(f"{said or 'wins 0'} of {len(ends)}" if ends else "not compared")
        runs = next((runs_text(found) for found in row["top1"].values() if found), "0")
        lines.append(f"{task_name(row)} | {titles[row['method']]} | {runs} | {' | '.join(cells)}")
    return table(
        "task | schedule | runs | the baseline's top-1 with less | its loss with less | "
        "top-1 in the same time, lengths | loss",
        "llrllll",
        lines,
    )


def cycles_beside(values: Row) -> str:
    """Where the paper's cycles came to the whole baseline's top-1, and anneals of their steps."""
    runs, texts = finals(values), []
    for epochs, steps in _CYCLES_BESIDE:
        cycles, anneals = [], []
        for task in dict.fromkeys(task for task, method, _ in runs if method == "paper"):
            cells = runs.get((task, "paper", epochs), {}).keys()
            whole, there, beside = (
                mean_scores(runs.get((task, *of), {}), cells)
                for of in (("baseline", 1.0), ("paper", epochs), ("anneal", steps))
            )
            if whole is not None and there is not None:
                cycles.append(there[0] >= whole[0])
                anneals += [] if beside is None else [beside[0] >= whole[0]]
        if cycles:
            texts.append(
                f"{epochs:g} | {sum(cycles)} of {len(cycles)} | {sum(anneals)} of {len(anneals)}"
            )
    number = f"{_CYCLES_BESIDE[0][0]:g}"
    rows = table(
        "times the baseline's epochs | the paper's cycles | an anneal of as many steps",
        "rrr",
        texts,
    )
    return (
        f"The paper gives its cycles {number} times the baseline's epochs; "
        f"{_CYCLES_BESIDE[-1][0]:g} times are as many steps as the baseline's. In how many tasks "
        f"of these small networks they reached the whole baseline's top-1, and an anneal of as "
        f"many steps, of the same seeds and folds:\n\n{rows}"
    )


def cycles_in_short(values: Row) -> str:
    """In how many tasks the paper's cycles came to the baseline, at the paper's epochs."""
    (epochs, _), *_ = _CYCLES_BESIDE
    cycles = [p for p in values["points"] if (p["method"], p["length"]) == ("paper", epochs)]
    there = sum(point["top1"] >= point["whole_baseline"]["top1"] for point in cycles)
    return (
        f"- **The paper's cycles**, at their {epochs:g} times the epochs, reached the whole "
        f"baseline in {there} of {len(cycles)} tasks of [these small "
        f"networks](docs/what_was_tried.md#what-failed)."
    )


def growing_table(values: Row) -> str:
    """Anneals whose full-grid share grows with the length, beside the anneal's fixed one."""
    runs, lines = finals(values), []
    for (task, method, length), cells in runs.items():
        if method != "anneal-growing-full":
            continue
        growing = scores_text(mean_scores(cells, cells.keys()))
        beside = runs.get((task, "anneal", length), {})
        fixed = scores_text(mean_scores(beside, cells.keys()))
        lines.append(f"{task} | {length:g} | {len(cells)} | {fixed} | {growing}")
    return table(
        "task | length | runs | anneal: top-1 | loss | growing share: top-1 | loss",
        "lrrrrrr",
        lines,
    )


def tokens_table(values: Row) -> str:
    """Of transformers: grids, dropped tokens and half of both, at equal cost and equal steps."""
    runs, lines = finals(values), []
    for task in dict.fromkeys(task for task, method, _ in runs if method == "tokens-and-grids"):
        for as_many, ways in _OF_TOKENS.items():
            of_ways = [runs.get((task, *way), {}) for way in ways]
            cells = of_ways[-1].keys()
            scores = " | ".join(scores_text(mean_scores(each, cells)) for each in of_ways)
            lines.append(f"{task} | {as_many} | {len(cells)} | {scores}")
    return table(
        "task | as many | runs | coarse grids: top-1 | loss | dropped tokens: top-1 | loss "
        "| half of both: top-1 | loss",
        "llrrrrrrr",
        lines,
    )


def _verdict(found: Row | None) -> str:
    """Of a saving at the whole baseline's score, by its 95% interval."""
    if found is None or found["cells"] == 1:
        return "open"
    if (found["low"] or 0) > 1:
        return "wins"
    if found["high"] is not None and found["high"] < 1:
        return "loses"
    if found["reached"] < 0.025:
        short = found["bound"] > _MOST_LEFT
        return f"falls short with {found['bound']:.1f}x less" if short else "loses"
    return "open"


def savings_in_short(values: Row) -> str:
    """From random weights: what schedule and optimizer save, each and both, in each cost.

    To the top-1 of the whole baseline under AdamW, and in the last column to that under Muon.
    """
    found = {
        (row["dataset"], row["method"], row.get("against")): row["top1"]
        for row in values["iso"]
        if row["regime"] == "scratch"
    }
    columns = (
        ("anneal", None),
        ("baseline-muon", None),
        ("anneal-muon", None),
        ("anneal-muon", "baseline-muon"),
    )
    lines = []
    costs = {"multiply_adds": "multiply-adds", "seconds_with_decoding": "seconds with decoding"}
    for cost, name in costs.items():
        for point in values["points"]:
            kind = (point["regime"], point["method"], point["length"])
            if kind == ("scratch", "baseline-muon", 1):
                dataset, adamw = point["dataset"], point["whole_baseline"]["top1"]
                *cells, last = (saving_text(found[(dataset, *each)].get(cost)) for each in columns)
                top1s = f"{100 * point['top1']:.1f} ({100 * adamw:.1f})"
                lines.append(f"{name} | {dataset} | {' | '.join([*cells, top1s, last])}")
    return table(
        "cost | videos | `anneal` | Muon | both | top-1 under Muon (AdamW) "
        "| `anneal` to that, under Muon",
        "llrrrrr",
        lines,
    )


def scores_text(scores: tuple[float, float] | None) -> str:
    """Top-1 and loss, as two cells."""
    return "- | -" if scores is None else f"{100 * scores[0]:.1f} | {scores[1]:.3f}"


def finals(values: Row) -> Mapping[tuple[str, str, float], Runs]:
    """The final runs of each task, method and length."""
    found: dict[tuple[str, str, float], dict[tuple[int, int], Row]] = {}
    for row in values["rows"]:
        if row["role"] == "final":
            of = found.setdefault((task_name(row), row["method"], row["length"]), {})
            of[row["seed"], row["fold"]] = row
    return found


def mean_scores(runs: Runs, cells: Collection[tuple[int, int]]) -> tuple[float, float] | None:
    """Top-1 and loss over these seeds and folds; None if one of them has not run, or there is none.

    The mean over folds of the mean over each fold's seeds, as in every point.
    """
    if not cells or not runs.keys() >= set(cells):
        return None
    folds: dict[int, list[Row]] = {}
    for seed, fold in cells:
        folds.setdefault(fold, []).append(runs[seed, fold])
    top1, loss = (
        mean(mean(run[score] for run in seeds) for seeds in folds.values()) for score in SCORES
    )
    return top1, loss
