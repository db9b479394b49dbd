"""What a report says of one run: its plan, what limited it, what it confuses, how it was started.

In: a run, its configuration, its validation videos. Out: a section of the page, as HTML.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from vcycle.config.run import RunConfig
from vcycle.data.json_lines import read_object, read_rows
from vcycle.data.loader_stats import limit_of
from vcycle.evaluate.metric_names import distinct
from vcycle.report.charts import confusion_chart, throughput_chart, waiting_chart
from vcycle.report.frames import ValidationVideos
from vcycle.report.page import Table, chart_html, details_html, heading_html, paragraph_html
from vcycle.report.plan_drawing import plan_svg
from vcycle.report.runs import RunRecord
from vcycle.report.scores import Mistake, Scores, confusion, read_scores, worst_mistakes

Row = dict[str, Any]

_MISTAKES = 12
_MOST_CLASSES = 30  # whose whole confusion matrix is a table
_MOST_PAIRS = 30


def run_section(
    title: str, run: RunRecord, config: RunConfig, videos: ValidationVideos, *, name: str
) -> str:
    """The section of a run, as far as its folder goes; ``name`` is its anchor."""
    path = Path(run.folder)
    parts = [
        heading_html(2, title, name=name),
        _final(path),
        _plan(run, config),
        _speed(path, config, name=name),
        _scores(path, run, videos, name=name),
        _bad_videos(path),
        _start(path),
    ]
    return "\n".join(parts)


def _final(path: Path) -> str:
    """What the evaluation that ended the run found, if one did."""
    file = path / "result.json"
    final = read_object(file).get("final") if file.is_file() else None
    if final is None:
        return ""
    metrics = final["intervals"].items() if "intervals" in final else ()
    found = ", ".join(
        f"{name.replace('_', ' ')} {final[name]:.1%} (95% interval {low:.1%} to {high:.1%})"
        for name, (low, high) in metrics
    )
    return paragraph_html(f"Final evaluation, {final['protocol']}: {found or 'no video scored'}.")


def _plan(run: RunRecord, config: RunConfig) -> str:
    plan = config.plan()
    caption = (
        "The plan: a box is a phase, as long as its steps, as high as its clips, as deep as their "
        "frames. Below it the clips of a step and the learning rate."
    )
    svg = plan_svg(plan, validations=[point.steps for point in run.points], label=caption)
    rows = [
        (
            number,
            f"{phase['batch_size']:,} x {phase['shape']}",
            f"{phase['first_step'] + 1:,} to {phase['last_step'] + 1:,}",
            f"{phase['epochs']:.1f}",
            f"{phase['learning_rate']:.4g}",
            ", ".join(f"{point.steps:,}" for point in run.points if _within(point.steps, phase))
            or "-",
        )
        for number, phase in enumerate(plan.to_dict()["phases"], 1)
    ]
    head = ("phase", "clips", "steps", "epochs", "learning rate", "validated after step")
    table = Table("The phases of the plan", head, rows, text=(1,))
    return "\n".join(
        [
            heading_html(3, "Plan"),
            f'<figure><figcaption>{escape(caption)}</figcaption><div class="drawing scroll" '
            f'tabindex="0" role="region" aria-label="Drawing of the plan">{svg}</div></figure>',
            details_html("The same as a table", table.html()),
        ]
    )


def _within(steps: int, phase: Row) -> bool:
    return bool(phase["first_step"] < steps <= phase["last_step"] + 1)


def _speed(path: Path, config: RunConfig, *, name: str) -> str:
    """Throughput and waiting of the phases that are done, and what limited each."""
    heading = heading_html(3, "Throughput")
    file = path / "phases.jsonl"
    rows = read_rows(file) if file.is_file() else []
    if not rows:
        return heading + paragraph_html("No phase is done yet.")
    shapes = [f"{p.base.batch_size} x {p.base.shape}" for p in config.plan().phases]
    phases = [
        {
            **row,
            "phase": row["phase"] + 1,
            "shape": shapes[row["phase"]],
            "limit": limit_of(row["wait_share"]),
        }
        for row in rows
    ]
    bound = [str(row["phase"]) for row in phases if row["limit"] == "loader-bound"]
    text = "The model was the limit in every phase that is done: it never waited long for clips."
    if bound:
        text = (
            f"Loading was the limit in {len(bound)} of {len(phases)} phases that are done (phase "
            f"{', '.join(bound)}): the table says what would help."
        )
    charts = [
        chart_html(throughput_chart(phases), name=f"{name}-speed", caption="Clips per second."),
        chart_html(
            waiting_chart(phases),
            name=f"{name}-waiting",
            caption="Share of the time in which training waited for clips.",
        ),
    ]
    cells = [
        (
            row["phase"],
            row["shape"],
            f"{row['clips_per_second']:,.0f}",
            f"{row['wait_share']:.1%}",
            row["workers"],
            row["verdict"],
        )
        for row in phases
    ]
    head = ("phase", "clips", "clips/s", "waiting", "workers", "verdict")
    table = Table("What limited each phase", head, cells, text=(1, 5))
    return "\n".join(
        [
            heading,
            paragraph_html(text),
            f'<div class="charts">{"".join(charts)}</div>',
            details_html("The same as a table, with the verdicts", table.html()),
        ]
    )


def _scores(path: Path, run: RunRecord, videos: ValidationVideos, *, name: str) -> str:
    """The confusion matrix and the worst mistakes, if there are scores."""
    file = path / "scores.csv"
    if not file.is_file():
        command = f"vcycle eval {shlex.quote(run.folder)} --scores {shlex.quote(str(file))}"
        return heading_html(3, "Confusion and mistakes") + paragraph_html(
            f"Left out: there are no scores of the videos yet. A run writes scores.csv at its end; "
            f"`{command}` writes those of its newest checkpoint, "
            f"of a model of your own with `--trust-code`."
        )
    classes, multi_label = distinct(run.validation["classes"]), run.validation["multi_label"]
    scores = read_scores(file, classes, multi_label=multi_label)
    if stranger := videos.other_than(scores.paths):
        return heading_html(3, "Confusion and mistakes") + paragraph_html(
            f"Left out: scores.csv is of other videos than those that the run is validated on, "
            f"such as {stranger}."
        )
    parts = []
    if multi_label:
        parts.append(heading_html(3, "Confusion"))
        parts.append(
            paragraph_html("Videos have several labels, so none is taken for another.", soft=True)
        )
    else:
        parts.append(_confusion(scores, classes, name=name))
    mistakes = worst_mistakes(scores, _MISTAKES, multi_label=multi_label)
    parts.append(heading_html(3, "Worst mistakes"))
    if not mistakes:
        parts.append(paragraph_html(f"None: all {len(scores.paths):,} videos are right."))
        return "\n".join(parts)
    parts.append(
        paragraph_html("The most confident wrong predictions of the last scores.", soft=True)
    )
    cards = "\n".join(_card(mistake, classes, videos) for mistake in mistakes)
    parts.append(f'<ul class="cards">{cards}</ul>')
    return "\n".join(parts)


def _confusion(scores: Scores, classes: Sequence[str], *, name: str) -> str:
    counts = confusion(scores)
    right, total = int(np.trace(counts)), len(scores.paths)
    lost = total - int(counts.sum())
    left_out = f" Scores of {lost:,} are not finite, and are left out." if lost else ""
    is_whole = len(classes) <= _MOST_CLASSES
    chart = chart_html(
        confusion_chart(counts, classes),
        name=f"{name}-confusion",
        caption=f"Videos of each class (row) taken for each class (column): {right:,} of "
        f"{total:,} are right.{left_out}",
        tabled="its values" if is_whole else "the classes that are confused most",
        tall=True,
    )
    if is_whole:
        rows: list[tuple[object, ...]] = [
            (true, *line) for true, line in zip(classes, counts.tolist(), strict=True)
        ]
        table = Table("Videos of each class (row) taken for each class", ("", *classes), rows)
        title = "The same as a table"
    else:
        wrong = counts - np.diag(np.diag(counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_PAIRS]
        pairs = [divmod(int(place), len(classes)) for place in order]
        rows = [
            (classes[i], classes[j], f"{wrong[i, j]:,}", f"{counts[i].sum():,}")
            for i, j in pairs
            if wrong[i, j]
        ]
        head = ("true class", "taken for", "videos", "of")
        table = Table("The classes that are confused most", head, rows, text=(1,))
        title = "The most frequent as a table"
    return heading_html(3, "Confusion") + chart + details_html(title, table.html())


def _card(mistake: Mistake, classes: Sequence[str], videos: ValidationVideos) -> str:
    strip = videos.view(mistake.path)
    names = ", ".join(classes[label] for label in mistake.labels) or "no class"
    text = f"Its scores are not finite; it shows <strong>{escape(names)}</strong>."
    if mistake.predicted is not None:
        name, share = escape(classes[mistake.predicted]), mistake.label_probability
        text = (
            f"<strong>{name}</strong>, with {mistake.probability:.1%}; "
            f"it shows <strong>{escape(names)}</strong>, with {share:.1%}."
        )
    if isinstance(strip, str):
        tiles = f'<p class="soft">Without its frames: {escape(strip)}.</p>'
    else:
        images = "".join(f'<img src="{frame}" alt="">' for frame in strip.frames)
        label = escape(f"Frames of {mistake.path}")
        tiles = f'<div class="tiles" role="img" aria-label="{label}">{images}</div>'
    return f'<li>{tiles}<p>{text}</p><p class="soft">{escape(mistake.path)}</p></li>'


def _bad_videos(path: Path) -> str:
    """The videos that no process could read, if there are any."""
    file = path / "bad_videos.json"
    bad = read_object(file) if file.is_file() else {}
    if not bad:
        return ""
    table = Table("Videos that could not be read", ("video", "reason"), [*bad.items()], text=(1,))
    return details_html(f"Videos that could not be read: {len(bad):,}", table.html())


def _start(path: Path) -> str:
    """How the run was started, on what, and its configuration."""
    file = path / "starts.jsonl"
    starts = read_rows(file) if file.is_file() else []
    parts = [heading_html(3, "Configuration, versions and command")]
    if not starts:
        parts.append(paragraph_html("The folder does not say how the run was started."))
    else:
        rows = [
            (
                f"{row['step'] + 1:,}",
                row["command"],
                f"{row['processes']} x {row['device']}",
                ", ".join(f"{name} {number}" for name, number in row["versions"].items() if number),
            )
            for row in starts
        ]
        head = ("from step", "command", "processes", "versions")
        parts.append(Table("Every start of the run", head, rows, text=(1, 2, 3)).html())
    text = (path / "config.yaml").read_text(encoding="utf-8")
    parts.append(details_html("config.yaml", f'<pre tabindex="0">{escape(text)}</pre>'))
    return "\n".join(parts)
