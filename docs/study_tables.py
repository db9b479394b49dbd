"""The tables of the study, as Markdown.

In: the values of docs/results/study.json, and of the benchmarks beside it. Out: a text for each
table, which docs/draw_results.py writes into the pages.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from typing import Any

_MOST_STEPS = 0.56
"""Over the baseline's, in which a schedule is to come to its top-1."""

NAMED = ("paper", "pass", "anneal", "tokens")
"""The methods that are schedules with a name, and the anneal that drops tokens."""

SCORES = ("top1", "loss")

Row = dict[str, Any]


def tasks_of(values: Row) -> list[tuple[str, str]]:
    """Data set and regime of every task that has final runs, in the study's order."""
    return list(dict.fromkeys((point["dataset"], point["regime"]) for point in values["points"]))


def state(values: Row) -> str:
    """How much of the grid is done, on what."""
    versions = ", ".join(f"{name} {number}" for name, number in values["versions"].items())
    finals = sum(row["role"] == "final" for row in values["rows"])
    commits = ", ".join(sorted({f"`{row['commit']}`" for row in values["rows"]}))
    counts = Counter((row["machine"], row["torch"]) for row in values["rows"])
    shares = "; ".join(
        f"{counts[name, torch]} on {letter}, {name}, torch {torch}"
        for (name, torch), letter in _machines(values).items()
    )
    timed = " and ".join(sorted({step["machine"] for step in values["steps"]}))
    failed = [row for row in values["rows"] if row.get("failed")]
    lines = [
        f"{values['complete']:,} of the grid's {values['runs']:,} runs are complete, {finals} of "
        f"them final and {values['complete'] - finals} for choosing rates. "
        + (f"{len(failed)} failed and count as guessing." if failed else "None failed."),
        "",
        f"{shares}. Seconds are those of steps timed on {timed}. {versions}; commits {commits}.",
    ]
    return "\n".join(lines)


def _machines(values: Row) -> dict[tuple[str, str], str]:
    """A letter for each machine and version of torch, those of most runs first."""
    counts = Counter((row["machine"], row["torch"]) for row in values["rows"])
    return {found: chr(ord("A") + place) for place, (found, _) in enumerate(counts.most_common())}


def iso_table(values: Row, titles: dict[str, str]) -> str:
    """Savings at the whole baseline's result, by top-1 and by loss, in each cost."""
    lines = [
        "| task | method | runs | top-1: seconds | multiply-adds | steps "
        "| loss: seconds | multiply-adds | steps |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in values["iso"]:
        found = [
            row[score].get(cost)
            for score in SCORES
            for cost in ("seconds", "multiply_adds", "steps")
        ]
        runs = next((_runs(each) for each in found if each), "0")
        cells = " | ".join(_saving(each) for each in found)
        lines.append(f"| {_task(row)} | {titles[row['method']]} | {runs} | {cells} |")
    return "\n".join(lines)


def lengths_table(values: Row, titles: dict[str, str]) -> str:
    """Savings at the result of every length of the baseline."""
    lines = [
        "| task | method | baseline's length | its top-1 | runs | top-1: multiply-adds "
        "| loss: multiply-adds |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    baselines = _baselines(values)
    for row in values["lengths"]:
        found = row["top1"]
        if row["method"] in NAMED and found and not _is_censored(found):
            length = row["baseline_length"]
            lines.append(
                f"| {_task(row)} | {titles[row['method']]} | {length:g} "
                f"| {100 * baselines[_task(row), length]['top1']:.1f} | {_runs(found)} "
                f"| {_saving(found)} | {_saving(row['loss'])} |"
            )
    return "\n".join(lines)


def _baselines(values: Row) -> dict[tuple[str, float], Row]:
    """The points of the baseline by task and length."""
    return {
        (_task(point), point["length"]): point
        for point in values["points"]
        if point["method"] == "baseline"
    }


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


def main_table(values: Row) -> str:
    """The anneal's savings by top-1, in seconds and multiply-adds, and what is to be reached."""
    lines = [
        "| task | runs | whole baseline's top-1 | saves seconds | multiply-adds |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    baselines = _baselines(values)
    for row in values["iso"]:
        found = [row["top1"].get(cost) for cost in ("seconds", "multiply_adds")]
        if row["method"] == "anneal" and any(each and each["cells"] > 1 for each in found):
            runs = next(_runs(each) for each in found if each)
            top1 = f"{100 * baselines[_task(row), 1]['top1']:.1f}"
            cells = " | ".join(_saving(each) for each in found)
            lines.append(f"| {_task(row)} | {runs} | {top1} | {cells} |")
    return "\n".join(lines)


def variants_table(values: Row, methods: dict[str, Row]) -> str:
    """Variants of a schedule beside the schedule at about their cost, where both were run."""
    lines = [
        "| task | variant | steps | runs | top-1 | its schedule's | loss | its schedule's |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    finals = [row for row in values["rows"] if row["role"] == "final"]
    groups: dict[tuple[Any, ...], dict[tuple[int, int], Row]] = {}
    for row in finals:
        task = (row["dataset"], row["regime"])
        point = groups.setdefault((task, row["method"], row["length"]), {})
        point[row["seed"], row["fold"]] = row
    for (task, name, _), rows in sorted(groups.items()):
        of = methods[name].get("rate_of")
        if of is None:
            continue
        cost = _multiply_adds(rows)
        lengths = [point for key, point in groups.items() if key[:2] == (task, of)]
        theirs = min(
            lengths, key=lambda each: abs(math.log(_multiply_adds(each) / cost)), default={}
        )
        both = sorted(rows.keys() & theirs.keys())
        if both:
            cells = " | ".join(
                f"{scale * statistics.mean(each[pair][score] for pair in both):.{digits}f}"
                for score, scale, digits in (("top1", 100, 1), ("loss", 1, 3))
                for each in (rows, theirs)
            )
            steps = rows[both[0]]["steps"]
            title = methods[name]["title"]
            lines.append(f"| {'/'.join(task)} | {title} | {steps:,} | {len(both)} | {cells} |")
    return "\n".join(lines)


def noise_table(phases: list[Row]) -> str:
    """The gradient noise scale along an anneal, in clips."""
    places = ("early", "middle", "late")
    lines = [
        "| shape | clips of a batch | " + " | ".join(places) + " |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for phase in phases:
        cells = " | ".join(
            f"{phase[place]['noise_scale']} ± {phase[place]['error']}" for place in places
        )
        lines.append(f"| {phase['shape']} | {phase['batch_size']} | {cells} |")
    return "\n".join(lines)


def _multiply_adds(rows: dict[tuple[int, int], Row]) -> float:
    """Of one run of a point."""
    return float(next(iter(rows.values()))["multiply_adds"])


def end_to_end_table(values: Row) -> str:
    """What a form of training takes in all, over the folds that every form has."""
    by_form: dict[str, list[Row]] = {}
    for row in values["rows"]:
        by_form.setdefault(row["title"], []).append(row)
    folds = set.intersection(*({row["fold"] for row in rows} for rows in by_form.values()))
    shared = {
        title: [row for row in rows if row["fold"] in folds] for title, rows in by_form.items()
    }
    seconds = {
        title: statistics.mean(row["seconds"] for row in rows) for title, rows in shared.items()
    }
    top1 = {title: statistics.mean(row["top1"] for row in rows) for title, rows in shared.items()}
    plain = next(iter(shared))
    lines = [
        "| form | folds | steps | seconds | times as fast | top-1 | loss "
        "| to the plain loop's top-1, seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {title} | {len(rows)} | {rows[0]['steps']:,} | {seconds[title]:.0f} "
        f"| {seconds[plain] / seconds[title]:.1f} | {100 * top1[title]:.1f} "
        f"| {statistics.mean(row['loss'] for row in rows):.3f} "
        f"| {f'{seconds[title]:.0f}' if top1[title] >= top1[plain] else 'not reached'} |"
        for title, rows in shared.items()
    ]
    return "\n".join(lines)


def equal_table(values: Row, titles: dict[str, str]) -> str:
    """What each length of the named schedules gains over the baseline in the same seconds."""
    lines = [
        "| task | schedule | steps | seconds | runs | top-1 | gain in top-1 | gain in loss |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for point in values["points"]:
        gains = [_gain(point["gain"].get(score), score, runs=point["runs"]) for score in SCORES]
        if point["method"] in NAMED and any(gains):
            lines.append(
                f"| {_task(point)} | {titles[point['method']]} | {point['steps']:,} "
                f"| {_seconds(point['seconds'])} | {point['runs']} | {_mean(point, 'top1')} "
                f"| {gains[0]} | {gains[1]} |"
            )
    return "\n".join(lines)


def headline(values: Row) -> str:
    """In how many tasks the anneal came to the whole baseline's top-1, in how few of its steps."""
    reached: dict[str, list[str]] = {"surely": [], "on average": [], "not": []}
    factors = []
    for row in values["iso"]:
        steps, macs = (row["top1"].get(cost) for cost in ("steps", "multiply_adds"))
        if row["method"] == "anneal" and steps:
            in_few = (steps["factor"] or 0) >= 1 / _MOST_STEPS
            kind = "not" if not in_few else "on average" if steps["low"] is None else "surely"
            reached[kind].append(_task(row))
            factors += [macs["factor"]] if kind == "surely" else []
    average, short = (", ".join(reached[kind]) for kind in ("on average", "not"))
    ends = [f"{end:.1f}" for end in (min(factors), max(factors))] if factors else []
    return (
        f"In five ninths of a tuned baseline's steps or fewer, `anneal` came to its top-1 in "
        f"{len(reached['surely'])} of {sum(map(len, reached.values()))} tasks, by all but a few of "
        f"the resamples of folds and seeds"
        + (f", with {' to '.join(ends)} times fewer multiply-adds" if ends else "")
        + (f"; on average, but with an open interval, in {average}" if average else "")
        + (f"; it stayed below in {short}" if short else "")
        + ":"
    )


def epochs_table(values: Row, titles: dict[str, str]) -> str:
    """The paper's measure: what a schedule saves over a baseline of as many epochs, and over one.

    A baseline of e times the epochs takes e times the steps and seconds of the whole one.
    """
    lines = [
        "| task | schedule | epochs | fewer steps | less time | at equal epochs: fewer steps "
        "| less time | top-1 | whole baseline there |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    baselines = _baselines(values)
    for point in values["points"]:
        whole = baselines.get((_task(point), 1))
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
            f"| {_task(point)} | {titles[point['method']]} | {epochs:.2f}x | {cells} "
            f"| {100 * point['top1']:.1f} | {_top1(there)} |"
        )
    return "\n".join(lines)


def points_table(values: Row, task: tuple[str, str], titles: dict[str, str]) -> str:
    """Every length of every method: its cost, its scores, what it gains at equal seconds."""
    lines = [
        "| method | length | rate | steps | epochs | multiply-adds | seconds | decoding | runs "
        "| top-1 | loss | whole baseline there | at equal seconds: top-1 | loss |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: "
        "| ---: | ---: |",
    ]
    for point in values["points"]:
        if (point["dataset"], point["regime"]) != task:
            continue
        gains = [_gain(point["gain"].get(score), score, runs=point["runs"]) for score in SCORES]
        lines.append(
            f"| {titles[point['method']]} | {point['length']:g} | {point['rate']:g} "
            f"| {point['steps']:,} | {point['epoch_factor']:.2f}x "
            f"| {point['multiply_adds'] / 1e12:.2f}T | {_seconds(point['seconds'])} "
            f"| {_seconds(point['decode_seconds'])} | {point['runs']} "
            f"| {_mean(point, 'top1')} | {_mean(point, 'loss')} "
            f"| {_there(point['whole_baseline'])} | {gains[0]} | {gains[1]} |"
        )
        if "full_shape_top1" in point:
            scores = " | ".join(_mean(point, f"full_shape_{score}") for score in SCORES)
            lines.append(f"| - at the full shape | |{' |' * 7} {scores} | | | |")
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _mean(point: Row, score: str) -> str:
    if score not in point:
        return "-"
    scale, digits = (100, 1) if score.endswith("top1") else (1, 3)
    deviation = point[f"{score}_deviation"]
    around = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    return f"{scale * point[score]:.{digits}f}{around}"


def _there(whole: Row) -> str:
    return f"{100 * whole['top1']:.1f}, {whole['loss']:.3f}" if whole else ""


def _top1(scores: Row) -> str:
    return f"{100 * scores['top1']:.1f}" if scores else ""


def _gain(gain: list[float] | None, score: str, *, runs: int) -> str:
    if gain is None:
        return ""
    scale, digits = (100, 1) if score == "top1" else (1, 2)
    *values, number = gain
    mean, *ends = (f"{scale * value:+.{digits}f}" for value in values if value is not None)
    interval = f" [{', '.join(ends)}]" if ends else ""
    return mean + interval + (f" ({number:g} runs)" if number != runs else "")


def rates_table(values: Row, titles: dict[str, str]) -> str:
    """The losses of the tuning runs; the least chose the rate."""
    groups: dict[tuple[str, str, float], dict[float, float]] = {}
    for row in values["rows"]:
        if row["role"] == "tuning":
            point = groups.setdefault((_task(row), row["method"], row["length"]), {})
            point[row["rate"]] = row["loss"]
    lines = ["| task | method | length | loss on the tuning people at each rate | best so far |"]
    lines += ["| --- | --- | ---: | --- | --- |"]
    places = []
    for (task, method, length), losses in groups.items():
        least = min(losses.values())
        texts = [_rate(rate, loss, least=least) for rate, loss in losses.items()]
        chosen = next(rate for rate, loss in losses.items() if loss == least)
        place = {min(losses): "the least", max(losses): "the largest"}.get(chosen, "")
        places.append(place)
        row = f"| {task} | {titles[method]} | {length:g} | {', '.join(texts)} | {place} |"
        lines.append(row)
    edges = sum(place != "" for place in places)
    return "\n".join(
        [
            f"Of {edges} of these {len(places)} the best is the least or the largest rate that was "
            f"tried so far: the next one is still to be, if the study has one.",
            "",
            *lines,
        ]
    )


def _rate(rate: float, loss: float, *, least: float) -> str:
    text = f"{rate:g}: {loss:.3f}"
    return f"**{text}**" if loss == least else text


def steps_table(values: Row, titles: dict[str, str]) -> str:
    """Milliseconds of a step and of decoding its clips, at each mini-batch."""
    lines = [
        "| task | method | clip | clips a step | step, ms | decoding, ms |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {_task(row)} | {titles[row['method']]} | {row['shape']} | {row['clips']} "
        f"| {1000 * row['seconds']:.0f} | {1000 * row['decode_seconds']:.0f} |"
        for row in values["steps"]
    ]
    return "\n".join(lines)


def quiet_table(values: Row, titles: dict[str, str]) -> str:
    """Whole runs on an idle machine beside the seconds that their steps' timings add up to."""
    lines = [
        "| task | method | steps | seconds, by the steps | took | top-1 | the first time |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {_task(row)} | {titles[row['method']]} | {row['steps']:,} | {_seconds(row['seconds'])} "
        f"| {_seconds(row['took_seconds'])} | {100 * row['top1']:.1f} "
        f"| {100 * row['top1_before']:.1f} |"
        for row in values["quiet"]
    ]
    return "\n".join(lines)


def rows_table(values: Row) -> str:
    """Every complete run, named as ``--only`` takes it."""
    lines = [
        "| run | rate | steps | seconds | took | top-1 | loss | on | commit |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    machines = _machines(values)
    for row in values["rows"]:
        part = f"rate{row['rate']:g}"
        if row["role"] == "final":
            part = f"seed{row['seed']}-fold{row['fold']}"
        name = f"{_task(row)}/{row['method']}-{row['length']:g}/{part}"
        top1 = "failed" if row.get("failed") else f"{100 * row['top1']:.1f}"
        lines.append(
            f"| `{name}` | {row['rate']:g} | {row['steps']:,} | {_seconds(row['seconds'])} "
            f"| {_seconds(row.get('busy_seconds'))} | {top1} | {row['loss']:.3f} "
            f"| {machines[row['machine'], row['torch']]} | `{row['commit']}` |"
        )
    return "\n".join(lines)


def _task(row: Row) -> str:
    return f"{row['dataset']}/{row['regime']}"
