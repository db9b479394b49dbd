"""A report of runs: one HTML file that needs no network, with every plot also a table.

In: run folders that are validated on the same videos. Out: accuracy over seconds, steps, clips and
multiply-adds; the plan of each run; what each phase was limited by; configurations and versions.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from importlib.metadata import version
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from vcycle.config.flags import read_config
from vcycle.data.atomic import write_atomic
from vcycle.data.json_lines import read_rows
from vcycle.report.compare import COSTS
from vcycle.report.curves import COLOURS, LABELS
from vcycle.report.plan_plot import draw_plans
from vcycle.report.runs import RunRecord, check_same_videos, read_run

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 72rem; margin: 0 auto; padding: 1rem; }
figure { margin: 1rem 0; background: #fff; color: #2e3440; border-radius: .4rem; overflow-x: auto; }
figure svg { width: 100%; height: auto; min-width: 34rem; display: block; }
figcaption { padding: .4rem .8rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #8886; text-align: right; }
th:first-child, td:first-child, .text td { text-align: left; }
summary { cursor: pointer; padding: .3rem 0; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid #8886; }
@media print { figure { break-inside: avoid; } :root { font-size: 11px; } }
"""


def write_report(folders: Sequence[str | Path], file: str | Path) -> None:
    """Write the report of run folders to ``file``, atomically.

    Raises ValueError if a folder cannot be read, or runs are validated on different videos.
    """
    runs = [read_run(folder) for folder in folders]
    check_same_videos(runs)
    body = [
        f"<h1>{escape(', '.join(Path(run.folder).name for run in runs))}</h1>",
        f"<p>{runs[0].validation['num_videos']} validation videos, "
        f"{len(runs[0].validation['classes'])} classes. vcycle {version('vcycle')}.</p>",
        "<h2>Accuracy</h2>",
        _figure(_accuracy_svg(runs), "Accuracy of every validation over what it took."),
        _details("The same as a table", _accuracy_table(runs)),
        "<h2>Loss and learning rate</h2>",
        _figure(_loss_svg(runs), "Loss and learning rate of every step."),
        _details("The same as a table, at the end of every phase", _loss_table(runs)),
    ]
    for run in runs:
        body += _run_section(run)
    data = json.dumps([_values(run) for run in runs]).replace("<", "\\u003c")
    title = escape(", ".join(run.folder for run in runs))
    write_atomic(
        Path(file),
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + f'\n</main>\n<script type="application/json" id="runs">{data}</script>\n'
        + "</body>\n</html>\n",
    )


def _values(run: RunRecord) -> dict[str, Any]:
    return {
        "folder": run.folder,
        "metric": run.metric,
        "points": [asdict(point) for point in run.points],
        "validation": run.validation,
    }


def _run_section(run: RunRecord) -> list[str]:
    """The plan, the phases and the configuration of a run."""
    path = Path(run.folder)
    config = read_config(path / "config.yaml")
    with tempfile.TemporaryDirectory() as scratch:
        draw_plans({path.name: config.plan()}, Path(scratch) / "plan.svg")
        plan = (Path(scratch) / "plan.svg").read_text()
    phases = json.loads((path / "plan.json").read_text())["phases"]
    speeds = {row["phase"]: row for row in read_rows(path / "phases.jsonl")}
    rows = []
    for number, phase in enumerate(phases):
        speed = speeds.get(number)
        rows.append(
            (
                number + 1,
                f"{phase['batch_size']} x {phase['shape']}",
                f"{phase['first_step'] + 1:,} to {phase['last_step'] + 1:,}",
                f"{speed['clips_per_second']:.0f}" if speed else "",
                f"{speed['wait_share']:.0%}" if speed else "",
                speed["verdict"].split(" (")[0] if speed else "not done",
            )
        )
    head = ("phase", "clips", "steps", "clips/s", "waiting", "limited by")
    text = escape((path / "config.yaml").read_text())
    return [
        f"<h2>{escape(run.folder)}</h2>",
        _figure(plan, "The plan: shapes and batches over the steps, the learning rate beneath."),
        _table(head, rows),
        _details("Configuration", f"<pre>{text}</pre>"),
    ]


def _accuracy_svg(runs: Sequence[RunRecord]) -> str:
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    for axes, cost in zip(figure.subplots(2, 2, sharey=True).flat, COSTS, strict=True):
        for run, colour in zip(runs, cycle(COLOURS), strict=False):
            known = [point for point in run.points if getattr(point, cost) is not None]
            axes.plot(
                [getattr(point, cost) for point in known],
                [100 * point.accuracy for point in known],
                color=colour,
                marker="o",
                markersize=4,
                label=Path(run.folder).name,
            )
        axes.set_xlabel(cost.replace("_", "-"))
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supylabel(f"{LABELS[runs[0].metric]} (%)", fontsize="medium")
    figure.axes[0].legend(frameon=False)
    return _svg(figure)


def _loss_svg(runs: Sequence[RunRecord]) -> str:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "learning_rate"), strict=True):
        for run, colour in zip(runs, cycle(COLOURS), strict=False):
            rows = [row for row in run.steps if row.get(name) is not None]
            axes.plot([row["step"] + 1 for row in rows], [row[name] for row in rows], color=colour)
        axes.set_xlabel("steps")
        axes.set_ylabel(name.replace("_", " "))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    return _svg(figure)


def _svg(figure: Figure) -> str:
    """A figure's SVG, the same bytes each time."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "vcycle", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _figure(svg: str, caption: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Each SVG's ids are its own: a page has them all.
    prefix = hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    label = escape(caption, quote=True)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return f'<figure tabindex="0">{svg}<figcaption>{escape(caption)}</figcaption></figure>'


def _accuracy_table(runs: Iterable[RunRecord]) -> str:
    rows = [
        (
            run.folder,
            f"{point.accuracy:.2%}",
            f"{point.seconds:,.1f}",
            f"{point.steps:,}",
            f"{point.clips:,}",
            "" if point.multiply_adds is None else f"{point.multiply_adds:.4g}",
        )
        for run in runs
        for point in run.points
    ]
    return _table(("run", "accuracy", *(cost.replace("_", "-") for cost in COSTS)), rows)


def _loss_table(runs: Iterable[RunRecord]) -> str:
    rows = []
    for run in runs:
        last_of_phase = {row.get("phase"): row for row in run.steps}
        for row in last_of_phase.values():
            loss = "not finite" if row["loss"] is None else f"{row['loss']:.4f}"
            rows.append((run.folder, f"{row['step'] + 1:,}", loss, f"{row['learning_rate']:.4g}"))
    return _table(("run", "step", "loss", "learning rate"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "\n".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>\n{lines}\n</tbody></table></div>"
    )


def _details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"
