"""What another optimizer saves, by itself and with the anneal, and how that is counted.

In: the values of docs/results/study.json. Out: a text for each mark, which docs/draw_results.py
writes into the pages.
"""

from __future__ import annotations

from markdown_table import table
from savings_tables import Row, baselines_of, saving_text, task_name
from task_tables import finals, mean_scores, scores_text

_AIM = 6
"""Times fewer multiply-adds at equal accuracy, on both sets of real clips."""
_REAL = ("isl_emergency8", "weizmann10")
_FORWARDS = 3
"""Forward passes that a step costs as much as: its own, and a backward pass of about two."""


def muon_savings(values: Row) -> str:
    """What Muon saves by itself, what the anneal saves with it, and over a baseline of its own."""
    found: dict[tuple[str, str | None], list[str]] = {}
    for row in values["iso"]:
        saving, is_scratch = row["top1"].get("multiply_adds"), row["regime"] == "scratch"
        if row["method"] in ("anneal-muon", "baseline-muon") and is_scratch and saving:
            key = (row["method"], row.get("against"))
            found.setdefault(key, []).append(f"{saving_text(saving)} on {row['dataset']}")
    in_bfloat16 = [
        f"{saving_text(row['top1']['seconds'])} on {row['dataset']}"
        for row in values["iso"]
        if row["method"] == "anneal-muon-bfloat16" and "seconds" in row["top1"]
    ]
    ends = [
        f"{100 * point['top1']:.1f} on {point['dataset']} (AdamW's "
        f"{100 * point['whole_baseline']['top1']:.1f})"
        for point in values["points"]
        if (point["regime"], point["method"], point["length"]) == ("scratch", "baseline-muon", 1)
    ]
    return "\n".join(
        [
            f"- Muon and the anneal: {', '.join(found['anneal-muon', None])}",
            f"- Muon and a shorter baseline: {', '.join(found['baseline-muon', None])}",
            f"- in seconds of steps, Muon and the anneal in bfloat16: {', '.join(in_bfloat16)}"
            f"{_of_bfloat16(values)}",
            "",
            f"Muon's own whole baseline comes to a top-1 of {', '.join(ends)}. What the anneal "
            f"saves at that top-1, under Muon: "
            f"{', '.join(found['anneal-muon', 'baseline-muon'])}.",
            "",
            _beside_the_aim(values),
        ]
    )


def _beside_the_aim(values: Row) -> str:
    """On how many of the real sets the aim was met, over either baseline."""
    counts, factors = {}, {}
    for against in (None, "baseline-muon"):
        found = _savings(values, against)
        own = {name: found[name]["factor"] for name in _REAL if name in found}
        counts[against] = f"{sum((factor or 0) >= _AIM for factor in own.values())} of {len(own)}"
        texts = (f"{f'{each:.1f}x' if each else 'not reached'} on {n}" for n, each in own.items())
        factors[against] = ", ".join(texts)
    return (
        f"The aim was {_AIM} times fewer at equal accuracy on both real sets. On average Muon and "
        f"the anneal met it on {counts[None]} ({factors[None]}); over Muon's own baseline, on "
        f"{counts['baseline-muon']} ({factors['baseline-muon']})."
    )


def with_norms(values: Row, batches: int) -> str:
    """What the shortest runs save if the estimate of norm statistics is counted on both sides."""
    texts = [
        ", ".join(
            f"{factor:.1f}x (in place of {found:.1f}x) on {name}"
            for name, (factor, found) in _with_norms(values, batches, share).items()
        )
        for share in (1 / _FORWARDS, 1)
    ]
    return (
        f"No cost counts the estimate of norm statistics after the last step: {batches} batches of "
        f"full clips, forward only, in every run with batch norm. It weighs most in the shortest "
        f"runs, those of Muon and the anneal. With it, these save in multiply-adds beside AdamW's "
        f"baseline:\n\n"
        f"- at a third of a step a batch: {texts[0]}\n"
        f"- at a whole step a batch, as forward passes alone would have it: {texts[1]}"
    )


def with_norms_in_short(values: Row, batches: int) -> str:
    """The same in short: the savings beside AdamW's baseline, set by set."""
    counted = _with_norms(values, batches, 1 / _FORWARDS).values()
    with_them, without = (
        ", ".join(f"{factor:.1f}x" for factor in factors) for factors in zip(*counted, strict=True)
    )
    return (
        f"- **Norm statistics** are estimated after the last step from {batches} batches of full "
        f"clips, forward only. No cost counts that. With it the anneal under Muon (*both* in "
        f"README) would save {with_them} in multiply-adds, in place of {without} ([how they "
        f"count](study.md#the-measure))."
    )


def _with_norms(values: Row, batches: int, share: float) -> dict[str, tuple[float, float]]:
    """By data set, the saving with a share of a step for each batch, and without.

    For a baseline's cost that is that of all its steps.
    """
    wholes, counted = baselines_of(values), {}
    for name, found in _savings(values, None).items():
        more = share * batches / wholes[f"{name}/scratch", 1]["steps"]
        counted[name] = ((1 + more) / (1 / found["factor"] + more), found["factor"])
    return counted


def _savings(values: Row, against: str | None) -> dict[str, Row]:
    """By data set, what Muon and the anneal save in multiply-adds, from random weights."""
    return {
        row["dataset"]: row["top1"]["multiply_adds"]
        for row in values["iso"]
        if (row["method"], row["regime"], row.get("against")) == ("anneal-muon", "scratch", against)
        and row["top1"].get("multiply_adds")
    }


def _of_bfloat16(values: Row) -> str:
    """How much of a saving in seconds is the precision's, by the full grid's steps."""
    seconds: dict[tuple[str, str], float] = {}
    for row in values["steps"]:
        if row["regime"] == "scratch" and row["shape"] == "8x96x96":
            seconds[row["dataset"], row["method"]] = row["seconds"]
    ratios = [
        seconds[dataset, "anneal-muon"] / slower
        for (dataset, method), slower in seconds.items()
        if method == "anneal-muon-bfloat16" and (dataset, "anneal-muon") in seconds
    ]
    if not ratios:
        return ""
    low, high = (f"{end:.1f}" for end in (min(ratios), max(ratios)))
    times = low if low == high else f"{low} to {high}"
    return f". The baseline is in float32; bfloat16 alone makes its full clips {times}x faster"


def muon_table(values: Row) -> str:
    """Each length under Muon; in its seeds and folds, Muon's whole baseline, and AdamW's length."""
    whole = {task: point for (task, length), point in baselines_of(values).items() if length == 1}
    runs, lines = finals(values), []
    for point in values["points"]:
        method, _, by = point["method"].partition("-")
        if by == "muon":
            task, length = task_name(point), point["length"]
            fewer = whole[task]["multiply_adds"] / point["multiply_adds"]
            cells = runs[task, point["method"], length].keys()
            scores = (
                scores_text(mean_scores(runs.get((task, *other), {}), cells))
                for other in ((point["method"], length), ("baseline-muon", 1), (method, length))
            )
            lines.append(
                f"{task} | {method} | {point['steps']:,} | {fewer:.1f}x | {point['runs']} "
                f"| {' | '.join(scores)}"
            )
    return table(
        "task | schedule | steps | fewer multiply-adds | runs | Muon: top-1 | loss "
        "| Muon's whole baseline: top-1 | loss | AdamW: top-1 | loss",
        "llrrrrrrrrr",
        lines,
    )
