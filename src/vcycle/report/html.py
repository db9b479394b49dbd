"""A report of runs: one HTML file that needs no network, with a table to every chart.

In: run folders that are validated on the same videos, complete or not. Out: accuracy over seconds,
steps, clips and multiply-adds; the plan of each run, what limited its phases, what it confuses and
its worst mistakes; a video at every shape; configurations, versions and commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vcycle.config.fields import read_config
from vcycle.config.run import RunConfig
from vcycle.data.atomic import check_output, write_atomic
from vcycle.evaluate.metric_names import METRICS
from vcycle.report.charts import (
    COST_TITLES,
    SERIES,
    accuracy_chart,
    step_chart,
)
from vcycle.report.compare import COSTS, comparison, comparison_cell
from vcycle.report.frames import SampledVideo, Strip, ValidationVideos
from vcycle.report.page import (
    Table,
    chart_html,
    details_html,
    heading_html,
    json_html,
    page_html,
    paragraph_html,
)
from vcycle.report.run_section import run_section
from vcycle.report.runs import RunRecord, as_written, check_same_videos, read_run

Runs = dict[str, RunRecord]
_MARKS = "\u25cf\u25a0\u25c6\u25b2\u2715"  # as the charts' markers
_MOST_NAMED = 5  # runs, in the title of the page


def write_report(folders: Sequence[str | Path], file: str | Path) -> None:
    """Write the report of run folders to ``file``, atomically.

    A run that is not complete is reported as far as it is. Raises ValueError if a folder cannot be
    read or has no steps yet, or runs are validated on different videos.
    """
    check_output(Path(file), ".html", ".htm", flag="--out")
    with as_written(*folders):
        page = _page(folders)
    write_atomic(Path(file), page)


def _page(folders: Sequence[str | Path]) -> str:
    records = [read_run(folder) for folder in folders]
    check_same_videos(records)
    runs = dict(zip(_titles(records), records, strict=True))
    configs = {title: read_config(Path(run.folder) / "config.yaml") for title, run in runs.items()}
    videos = {
        title: ValidationVideos(Path(run.folder), configs[title], run.validation)
        for title, run in runs.items()
    }
    widest = max(configs, key=lambda title: len(configs[title].plan().shapes))
    links = [("summary", "Summary"), ("accuracy", "Accuracy"), ("training", "Loss and rate")]
    sections = [_summary(runs), _accuracy(runs), _training(runs)]
    for number, (title, run) in enumerate(runs.items()):
        links.append((f"run-{number}", title))
        sections.append(
            run_section(title, run, configs[title], videos[title], name=f"run-{number}")
        )
    links.append(("shapes", "A video at every shape"))
    shapes = sorted({configs[widest].baseline.shape, *configs[widest].plan().shapes})
    sampled = videos[widest].sampled(shapes)
    sections += [_shapes(sampled, widest, videos[widest].reason)]
    sections.append(
        json_html([_values(title, run, configs[title]) for title, run in runs.items()], name="runs")
    )
    named = ", ".join(runs) if len(runs) <= _MOST_NAMED else f"{len(runs)} runs"
    return page_html(f"vcycle report: {named}", sections, links=links)


def _titles(runs: Sequence[RunRecord]) -> list[str]:
    """The folders' names, or if two are the same, the folders as they were given."""
    names = [Path(run.folder).resolve().name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [run.folder for run in runs]


def _values(title: str, run: RunRecord, config: RunConfig) -> dict[str, Any]:
    return {
        "title": title,
        "folder": run.folder,
        "metric": run.metric,
        "points": [asdict(point) for point in run.points],
        "validation": run.validation,
        "plan": config.plan().to_dict()["phases"],
    }


def _summary(runs: Runs) -> str:
    first = next(iter(runs.values()))
    metric = METRICS[first.metric]
    rows = []
    for title, run in runs.items():
        last = run.points[-1] if run.points else None
        rows.append(
            (
                title,
                "complete" if run.is_complete else "not complete",
                "-" if last is None else f"{last.accuracy:.1%}",
                "-" if last is None else f"{run.best:.1%}",
                f"{run.steps[-1]['seconds']:,.1f}",
                f"{len(run.steps):,}",
                f"{sum(step['batch_size'] for step in run.steps):,}",
                _number(run.multiply_adds),
            )
        )
    head = ("run", "state", "last", "best", *_cost_heads())
    caption = f"The {metric} of the last and of the best validation, and what the run took"
    parts = [
        paragraph_html(
            f"{first.validation['num_videos']:,} validation videos of "
            f"{len(first.validation['classes']):,} classes. Written by vcycle {version('vcycle')}.",
            soft=True,
        ),
        heading_html(2, "Summary", name="summary"),
        Table(caption, head, rows).html(),
    ]
    if len(runs) > 1 and all(run.points for run in runs.values()):
        parts.append(_comparison(runs))
    return "\n".join(parts)


def _comparison(runs: Runs) -> str:
    """What each run took to reach the first run's last accuracy."""
    values = comparison([replace(run, folder=title) for title, run in runs.items()])
    rows = []
    for number, (title, row) in enumerate(zip(runs, values["runs"], strict=True)):
        if row["reached"]:
            ratios = row["times_less"] if number else dict.fromkeys(COSTS)
            cells = [comparison_cell(row[cost], ratios[cost]) for cost in COSTS]
        else:
            cells = [f"not reached: at best {row['best']:.1%}", *["-"] * (len(COSTS) - 1)]
        rows.append((title, *cells))
    caption = (
        f"What each run took to its first validation at {values['accuracy']:.1%} or above, the "
        f"last accuracy of {next(iter(runs))}"
    )
    notes = "".join(paragraph_html(f"Note: {note}.", soft=True) for note in values["notes"])
    return Table(caption, ("run", *_cost_heads()), rows).html() + notes


def _cost_heads() -> list[str]:
    return [cost.replace("_", "-") for cost in COSTS]


def _legend(runs: Runs) -> str:
    items = "".join(
        f'<li class="s{number % SERIES}">{_MARKS[number % SERIES]} {escape(title)}</li>'
        for number, title in enumerate(runs)
    )
    return f'<ul class="legend" aria-label="Runs">{items}</ul>'


def _accuracy(runs: Runs) -> str:
    parts = [heading_html(2, "Accuracy", name="accuracy")]
    if not any(run.points for run in runs.values()):
        return parts[0] + paragraph_html("No validation has been done yet.")
    metric = METRICS[next(iter(runs.values())).metric]
    charts = [
        chart_html(
            accuracy_chart(runs, cost),
            name=f"accuracy-{cost}",
            caption=f"{metric.capitalize()} over {COST_TITLES[cost]}.",
        )
        for cost in COSTS
        if any(getattr(point, cost) is not None for run in runs.values() for point in run.points)
    ]
    rows = [
        (
            title,
            f"{point.accuracy:.2%}",
            f"{point.seconds:,.1f}",
            f"{point.steps:,}",
            f"{point.clips:,}",
            _number(point.multiply_adds),
        )
        for title, run in runs.items()
        for point in run.points
    ]
    table = Table("Every validation", ("run", metric, *_cost_heads()), rows)
    parts += [
        paragraph_html(
            f"Every validation is at the run's full shape: {_validated_at(runs)}. Seconds are "
            f"those of training alone; multiply-adds are those of the clips' forward passes.",
            soft=True,
        ),
        _legend(runs),
        f'<div class="charts">{"".join(charts)}</div>',
        details_html("The same as a table", table.html()),
    ]
    return "\n".join(parts)


def _validated_at(runs: Runs) -> str:
    """The shape at which runs are validated; if they differ, each with its runs."""
    titles: dict[str, list[str]] = {}
    for title, run in runs.items():
        titles.setdefault(run.validation["shape"], []).append(title)
    if len(titles) == 1:
        return next(iter(titles))
    return "; ".join(f"{shape} in {', '.join(of)}" for shape, of in titles.items())


def _training(runs: Runs) -> str:
    charts = [
        chart_html(
            step_chart(runs, name),
            name=name,
            caption=caption,
            tabled="its values at the end of every phase",
        )
        for name, caption in (
            ("loss", "Training loss over steps, the mean of neighbours where there are many."),
            ("learning_rate", "Learning rate over steps, on a logarithmic scale."),
        )
    ]
    rows = []
    for title, run in runs.items():
        for step in {row["phase"]: row for row in run.steps}.values():
            loss = "not finite" if step["loss"] is None else f"{step['loss']:.4f}"
            rows.append((title, f"{step['step'] + 1:,}", loss, f"{step['learning_rate']:.4g}"))
    head = ("run", "step", "loss", "learning rate")
    table = Table("The last step of every phase", head, rows)
    return "\n".join(
        [
            heading_html(2, "Loss and learning rate", name="training"),
            _legend(runs),
            f'<div class="charts">{"".join(charts)}</div>',
            details_html("The end of every phase as a table", table.html()),
        ]
    )


def _shapes(sampled: SampledVideo | None, title: str, reason: str) -> str:
    """One video as training sees it, from the fewest pixels to the most."""
    heading = heading_html(2, "A video at every shape", name="shapes")
    if sampled is None:
        return heading + paragraph_html(f"Left out: {reason}.")
    video = sampled.video
    text = (
        f"{video.path}: {video.num_frames:,} frames of {video.width} x {video.height} pixels. "
        f"Left, the part of the frame that a clip covers; right, frames of the clip, each pixel "
        f"as the model gets it. Strides, starts and crops are drawn at random, as in training: a "
        f"coarser grid covers as much of the video in larger steps. The shapes are those of "
        f"{title}."
    )
    clips = "\n".join(_clip(sampled, strip) for strip in sampled.strips)
    return heading + paragraph_html(text, soft=True) + f'<div class="shapes">{clips}</div>'


def _clip(sampled: SampledVideo, strip: Strip) -> str:
    video, grid, box = sampled.video, strip.grid, strip.grid.box
    shown = f", {len(strip.frames)} of them shown" if len(strip.frames) < len(grid.frames) else ""
    mirrored = ", mirrored" if grid.flip else ""
    text = (
        f"frames {grid.frames[0]:,} to {grid.frames[-1]:,}{shown}; {box.width} x {box.height} "
        f"pixels from ({box.left}, {box.top}) become {grid.width} x {grid.height}{mirrored}"
    )
    label = escape(f"Clip of {strip.shape}: {text}")
    line = max(video.width, video.height) / 60
    whole = (
        f'<svg viewBox="0 0 {video.width} {video.height}" aria-hidden="true">'
        f'<image href="{sampled.whole}" width="{video.width}" height="{video.height}"/>'
        f'<rect x="{box.left}" y="{box.top}" width="{box.width}" height="{box.height}" '
        f'stroke-width="{line:.2f}"/></svg>'
    )
    tiles = "".join(f'<img src="{frame}" alt="">' for frame in strip.frames)
    return (
        f'<figure class="clip">{whole}<div><figcaption><strong>{escape(str(strip.shape))}</strong> '
        f'{escape(text)}</figcaption><div class="tiles" role="img" aria-label="{label}">{tiles}'
        f"</div></div></figure>"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
