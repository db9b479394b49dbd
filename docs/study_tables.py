"""The tables of the study's runs, and of the benchmarks beside it, as Markdown.

In: the values of docs/results/study.json, and of its neighbours. Out: a text for each table, which
docs/draw_results.py writes into the pages.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from markdown_table import table
from savings_tables import SCORES, Row, gain_text, score_text, seconds_text, task_name

ANNEALS = ("anneal", "anneal-muon")
"""Forms of the end-to-end benchmark: under AdamW and under Muon."""


def tasks_of(values: Row) -> list[tuple[str, str]]:
    """Data set and regime of every task that has final runs, in the study's order."""
    return list(dict.fromkeys((point["dataset"], point["regime"]) for point in values["points"]))


def state(values: Row) -> str:
    """How much of the grid is done, on what."""
    versions = ", ".join(f"{name} {number}" for name, number in values["versions"].items())
    finals = sum(row["role"] == "final" for row in values["rows"])
    commits = len({row["commit"] for row in values["rows"]})
    counts = Counter((row["machine"], row["torch"]) for row in values["rows"])
    shares = "; ".join(
        f"{counts[name, torch]} on {letter}, {name}, torch {torch}"
        for (name, torch), letter in _machines(values).items()
    )
    timed = " and ".join(sorted({step["machine"] for step in values["steps"]}))
    failed = [row for row in values["rows"] if row.get("failed")]
    lines = [
        f"{values['complete']:,} of the grid's {values['runs']:,} runs are complete, {finals:,} of "
        f"them final and {values['complete'] - finals} for choosing rates. "
        + (f"{len(failed)} failed and count as guessing." if failed else "None failed."),
        "",
        f"{shares}. Seconds are those of steps timed on {timed}. {versions}; {commits} commits, of "
        f"which each row in the JSON names its own.",
    ]
    return "\n".join(lines)


def _machines(values: Row) -> dict[tuple[str, str], str]:
    """A letter for each machine and version of torch, those of most runs first."""
    counts = Counter((row["machine"], row["torch"]) for row in values["rows"])
    return {found: chr(ord("A") + place) for place, (found, _) in enumerate(counts.most_common())}


def variants_table(
    values: Row, titles: dict[str, str], *, methods: Sequence[str] | None = None
) -> str:
    """Variants of a schedule, or ``methods``, beside it at about their cost, where both ran."""
    lines = []
    for point in sorted(values["points"], key=lambda p: (task_name(p), p["method"], p["length"])):
        if methods is not None and point["method"] not in methods:
            continue
        if beside := point.get("beside"):
            cells = " | ".join(
                f"{scale * mean:.{digits}f}"
                for score, scale, digits in (("top1", 100, 1), ("loss", 1, 3))
                for mean in beside[score]
            )
            lines.append(
                f"{task_name(point)} | {titles[point['method']]} | {point['steps']:,} "
                f"| {beside['runs']} | {cells}"
            )
    return table(
        "task | variant | steps | runs | top-1 | its schedule's | loss | its schedule's",
        "llrrrrrr",
        lines,
    )


def noise_table(phases: list[Row]) -> str:
    """The gradient noise scale along an anneal, in clips."""
    places = ("early", "middle", "late")
    lines = []
    for phase in phases:
        cells = " | ".join(
            f"{phase[place]['noise_scale']} ± {phase[place]['error']}" for place in places
        )
        lines.append(f"{phase['shape']} | {phase['batch_size']} | {cells}")
    return table("shape | clips of a batch | " + " | ".join(places), "lrrrr", lines)


def in_all(signs: list[Row], actions: list[Row]) -> str:
    """The end-to-end seconds of the plain loop, and of this package's by schedule and optimizer."""
    titles = {
        "plain": "plain PyTorch loop",
        "plain-fast": "the same in channels-last, in bfloat16 where the CPU is made for it",
        "baseline": "vcycle's baseline",
        "muon": "half of it under Muon",
        "anneal": "`anneal`",
        "anneal-muon": "both",
    }
    of_set = [_shared_folds(rows) for rows in (signs, actions)]
    seconds, top1 = (
        [
            {name: statistics.mean(row[key] for row in own) for name, own in forms.items()}
            for forms in of_set
        ]
        for key in ("seconds", "top1")
    )
    lines = [
        f"{title} | {seconds[0][name]:.0f} | {100 * top1[0][name]:.1f} | {seconds[1][name]:.0f} "
        f"| {100 * top1[1][name]:.1f}"
        for name, title in titles.items()
    ]
    faster = [
        {name: each["plain"] / each[name] for name in ("plain-fast", "baseline", *ANNEALS)}
        for each in seconds
    ]
    first, second = (
        f"{each['anneal']:.1f} times as fast as the plain loop, and both "
        f"{each['anneal-muon']:.1f} times"
        for each in faster
    )
    beside = [
        " and ".join(f"{each[name] / each['baseline']:.1f}" for name in ANNEALS) for each in faster
    ]
    shown = {name: round(100 * each, 1) for name, each in top1[0].items()}
    below = " and ".join(f"{shown['baseline'] - shown[name]:.1f}" for name in ANNEALS)
    columns = "form | sign language: seconds | top-1 | actions: seconds | top-1"
    return (
        f"In wall-clock, decoding included, on {len(of_set[0]['plain'])} folds of sign language, "
        f"and on {len(of_set[1]['plain'])} of Weizmann's actions on a CPU that is not made for "
        f"bfloat16, one seed ([each form](docs/what_was_tried.md#end-to-end)):\n\n"
        f"{table(columns, 'lrrrr', lines)}\n\n"
        f"On sign language `anneal` is {first}; of either, a factor of "
        f"{faster[0]['plain-fast']:.1f} is channels-last bfloat16's. Beside vcycle's own baseline "
        f"they are {beside[0]} times as fast, and ended {below} points lower. On "
        f"actions `anneal` is {second}, of which {faster[1]['plain-fast']:.1f} is channels-last's, "
        f"and beside vcycle's baseline they are {beside[1]} times as fast. What the top-1s differ "
        f"by there, on {sum(row['videos'] for row in of_set[1]['plain'])} videos, is mostly chance."
    )


def _shared_folds(rows: list[Row]) -> dict[str, list[Row]]:
    """The rows of each form, of the folds that every form has."""
    forms: dict[str, list[Row]] = {}
    for row in rows:
        forms.setdefault(row["form"], []).append(row)
    folds = set.intersection(*({row["fold"] for row in own} for own in forms.values()))
    return {name: [row for row in own if row["fold"] in folds] for name, own in forms.items()}


def end_to_end_table(rows: list[Row]) -> str:
    """What a form of training takes in all, over the folds that every form has."""
    shared = {own[0]["title"]: own for own in _shared_folds(rows).values()}
    seconds = {
        title: statistics.mean(row["seconds"] for row in own) for title, own in shared.items()
    }
    top1 = {title: statistics.mean(row["top1"] for row in own) for title, own in shared.items()}
    plain = next(iter(shared))
    lines = [
        f"{title} | {len(own)} | {own[0]['steps']:,} | {seconds[title]:.0f} "
        f"| {seconds[plain] / seconds[title]:.1f} | {100 * top1[title]:.1f} "
        f"| {statistics.mean(row['loss'] for row in own):.3f} "
        f"| {f'{seconds[title]:.0f}' if top1[title] >= top1[plain] else 'not reached'}"
        for title, own in shared.items()
    ]
    return table(
        "form | folds | steps | seconds | times as fast | top-1 | loss | "
        "to the plain loop's top-1, seconds",
        "lrrrrrrr",
        lines,
    )


def trial_table(values: Row, titles: dict[str, str]) -> str:
    """Every length of a study of one task, none of whose steps were timed."""
    whole = max(row["multiply_adds"] for row in values["points"] if row["method"] == "baseline")
    lines = [
        f"{titles[point['method']]} | {point['steps']:,} | {whole / point['multiply_adds']:.1f}x "
        f"| {point['runs']} | {100 * point['top1']:.1f} | {point['loss']:.3f}"
        for point in values["points"]
    ]
    return table("schedule | steps | fewer multiply-adds | runs | top-1 | loss", "lrrrrr", lines)


def points_table(values: Row, task: tuple[str, str], titles: dict[str, str]) -> str:
    """Every length of every method: its cost, its scores, what it gains at equal seconds."""
    lines = []
    for point in values["points"]:
        if (point["dataset"], point["regime"]) != task:
            continue
        gains = [gain_text(point["gain"].get(score), score, runs=point["runs"]) for score in SCORES]
        lines.append(
            f"{titles[point['method']]} | {point['length']:g} | {point['rate']:g} "
            f"| {point['steps']:,} | {point['epoch_factor']:.2f}x "
            f"| {point['multiply_adds'] / 1e12:.2f}T | {seconds_text(point['seconds'])} "
            f"| {seconds_text(point['decode_seconds'])} | {point['runs']} "
            f"| {score_text(point, 'top1')} | {score_text(point, 'loss')} "
            f"| {_there(point['whole_baseline'])} | {gains[0]} | {gains[1]}"
        )
        if "full_shape_top1" in point:
            scores = " | ".join(score_text(point, f"full_shape_{score}") for score in SCORES)
            lines.append(f"- at the full shape | |{' |' * 7} {scores} | | |")
    return table(
        "method | length | rate | steps | epochs | multiply-adds | seconds | "
        "decoding | runs | top-1 | loss | whole baseline there | at equal seconds: top-1 | loss",
        "lrrrrrrrrrrrrr",
        lines,
    )


def _there(whole: Row) -> str:
    return f"{100 * whole['top1']:.1f}, {whole['loss']:.3f}" if whole else ""


def rates_table(values: Row, titles: dict[str, str]) -> str:
    """The losses of the tuning runs; the least chose the rate."""
    groups: dict[tuple[str, str, float], dict[float, float]] = {}
    for row in values["rows"]:
        if row["role"] == "tuning":
            point = groups.setdefault((task_name(row), row["method"], row["length"]), {})
            point[row["rate"]] = row["loss"]
    lines = []
    places = []
    for (task, method, length), losses in groups.items():
        least = min(losses.values())
        texts = [_rate(rate, loss, least=least) for rate, loss in losses.items()]
        chosen = next(rate for rate, loss in losses.items() if loss == least)
        place = {min(losses): "the least", max(losses): "the largest"}.get(chosen, "")
        places.append(place)
        lines.append(f"{task} | {titles[method]} | {length:g} | {', '.join(texts)} | {place}")
    edges = sum(place != "" for place in places)
    return "\n".join(
        [
            f"Of {edges} of these {len(places)} the best is the least or the largest rate that was "
            f"tried: one beyond it might have been better.",
            "",
            table(
                "task | method | length | loss on the tuning people at each rate | the best is",
                "llrll",
                lines,
            ),
        ]
    )


def _rate(rate: float, loss: float, *, least: float) -> str:
    text = f"{rate:g}: {loss:.3f}"
    return f"**{text}**" if loss == least else text


def steps_table(values: Row, titles: dict[str, str]) -> str:
    """Milliseconds of a step and of decoding its clips, at each mini-batch."""
    lines = [
        f"{task_name(row)} | {titles[row['method']]} | {row['shape']} | {row['clips']} "
        f"| {1000 * row['seconds']:.0f} | {1000 * row['decode_seconds']:.0f}"
        for row in values["steps"]
    ]
    return table("task | method | clip | clips a step | step, ms | decoding, ms", "llrrrr", lines)


def quiet_table(values: Row, titles: dict[str, str]) -> str:
    """Whole runs by themselves beside the seconds that their steps' timings add up to."""
    lines = [
        f"{task_name(row)} | {titles[row['method']]} | {row['steps']:,} "
        f"| {seconds_text(row['seconds'])} | {seconds_text(row['took_seconds'])} "
        f"| {row['took_seconds'] / row['seconds']:.2f} | {row['load']:.1f} "
        f"| {100 * row['top1']:.1f} | {100 * row['top1_before']:.1f}"
        for row in values["quiet"]
    ]
    return table(
        "task | method | steps | seconds, by the steps | took | ratio | load | top-1 "
        "| the first time",
        "llrrrrrrr",
        lines,
    )


def rows_table(values: Row) -> str:
    """Every complete run, named as ``--only`` takes it."""
    lines = []
    machines = _machines(values)
    for row in values["rows"]:
        part = f"rate{row['rate']:g}"
        if row["role"] == "final":
            part = f"seed{row['seed']}-fold{row['fold']}"
        name = f"{task_name(row)}/{row['method']}-{row['length']:g}/{part}"
        top1 = "failed" if row.get("failed") else f"{100 * row['top1']:.1f}"
        lines.append(
            f"`{name}` | {row['rate']:g} | {row['steps']:,} | {seconds_text(row['seconds'])} "
            f"| {seconds_text(row.get('busy_seconds'))} | {top1} | {row['loss']:.3f} "
            f"| {machines[row['machine'], row['torch']]} | `{row['commit']}`"
        )
    return table(
        "run | rate | steps | seconds | took | top-1 | loss | on | commit", "lrrrrrrll", lines
    )


def bfloat16_table(values: Row) -> str:
    """Runs with steps in bfloat16 less the same in float32: of one seed, fold and length each."""
    suffix = "-bfloat16"
    methods = {row["method"] for row in values["rows"] if row["method"].endswith(suffix)}
    pairs = _differences(values, {each: each.removesuffix(suffix) for each in methods})
    named: dict[tuple[str, ...], list[tuple[float, float]]] = {
        (task, "Muon" if "muon" in method else "AdamW", length): found
        for (task, method, length), found in pairs.items()
    }
    named["all", "", ""] = [each for found in pairs.values() for each in found]
    lines = [_difference_row(kind, found) for kind, found in named.items()]
    return table("task | optimizer | length | pairs | top-1 | loss", "lllrrr", lines)


def same_length_table(values: Row) -> str:
    """Anneals less the baseline of as many steps and the same optimizer, with their intervals."""
    titles = {"anneal": "anneal", "anneal-retuned": "anneal at its rate"}
    titles |= {"anneal-muon": "anneal", "anneal-muon-retuned": "anneal at its rate"}
    titles |= {"anneal-muon-mostly-full": "anneal, 15/15/70%"}
    lines = []
    for row in values["same_steps"]:
        if row["method"] not in titles:
            continue
        of_task = "SGD" if row["regime"] == "sgd" else "AdamW"
        optimizer = "Muon" if "muon" in row["method"] else of_task
        gains = " | ".join(
            gain_text(row[score], score, runs=row["runs"], digits_of_loss=3) for score in SCORES
        )
        lines.append(
            f"{task_name(row)} | {optimizer} | {titles[row['method']]} | {row['length']:g} "
            f"| {row['runs']}, {row['runs_against']} | {gains}"
        )
    return table("task | optimizer | schedule | length | runs | top-1 | loss", "llllrrr", lines)


def _differences(
    values: Row, partners: Mapping[str, str]
) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
    """(task, method, length) -> top-1 in points and loss less the partner's, a pair a run.

    A pair is of one seed, fold and length.
    """
    scores = {
        (row["dataset"], row["regime"], row["method"], row["length"], row["seed"], row["fold"]): (
            100 * row["top1"],
            row["loss"],
        )
        for row in values["rows"]
        if row["role"] == "final"
    }
    pairs: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for (dataset, regime, method, *run), (top1, loss) in scores.items():
        other = scores.get((dataset, regime, partners.get(method, ""), *run))
        if other is not None:
            found = pairs.setdefault((f"{dataset}/{regime}", method, f"{run[0]:g}"), [])
            found.append((top1 - other[0], loss - other[1]))
    return pairs


def _difference_row(kind: Sequence[str], found: Sequence[tuple[float, float]]) -> str:
    top1s, losses = zip(*found, strict=True)
    means = f"{_mean_and_error(top1s, 1)} | {_mean_and_error(losses, 3)}"
    return f"{' | '.join(kind)} | {len(found)} | {means}"


def _mean_and_error(differences: Sequence[float], digits: int) -> str:
    """The mean and its standard error."""
    mean = f"{statistics.fmean(differences):+.{digits}f}"
    if len(differences) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(differences) / math.sqrt(len(differences)):.{digits}f}"
