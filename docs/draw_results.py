"""Write docs/results.md's tables and figures from docs/results/study.json.

python docs/draw_results.py           write the tables and the figures
python docs/draw_results.py --check   exit 1 if one is out of date
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import control_tables
import matplotlib
import muon_tables
import savings_tables as savings
import study_tables as tables
import task_tables
import yaml
from marked_pages import update_pages
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator
from savings_tables import Row

DOCS = Path(__file__).parent
STUDIES = DOCS.parent / "benchmarks" / "study"
LABELS = {"top1": "top-1 (%)", "loss": "cross-entropy"}
COLOURS = ("#2e3440", "#5e81ac", "#d08770", "#2e7d5b", "#b48ead", "#a3883f")
MARKERS = "osD^vPX<>*hp"
"""The first methods have a colour each; the others are grey and differ in their marker, but that
those under Muon, and baselines with the anneal's rate, have the colour of the same without."""
LINES = {"": "-", "-muon": "--", "-anneal": ":", "-muon-anneal": "-."}
IN_SHORT = (("isl_emergency8", "scratch"), ("weizmann10", "scratch"))
FEW = ("baseline", "paper", "pass", "anneal", "baseline-muon", "anneal-muon")
"""The tasks and methods of the figures that other pages show."""
_MOST_COUNTED = 7
"""Curves among which the number of runs beside each point can be read."""


def _points(values: Row, task: tuple[str, str]) -> list[Row]:
    """Those of a task whose steps were timed."""
    return [p for p in values["points"] if (p["dataset"], p["regime"]) == task and p["seconds"]]


def draw(
    values: Row, task: tuple[str, str], titles: dict[str, str], file: Path, *, counts: bool
) -> None:
    """Both scores over seconds of training, a curve for each of ``titles``, a point a length.

    With ``counts`` the number of its runs is beside each point, where there is room. A method of
    a single length is left to the table, if others have more.
    """
    points = _points(values, task)
    lengths = Counter(point["method"] for point in points)
    # Numbered in all of the study, so that a method looks the same in every figure.
    names = list(titles)
    least = min(2, max(lengths.values()))
    methods = {k: n for k, n in enumerate(names) if lengths[n] >= least}
    counts = counts and len(methods) <= _MOST_COUNTED
    style = {"svg.hashsalt": "vcycle", "font.size": 10, "svg.fonttype": "none"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(11.5, 4.4), layout="constrained")
        for axes, score in zip(figure.subplots(1, 2), savings.SCORES, strict=True):
            scale = 100 if score == "top1" else 1
            for number, name in methods.items():
                others = max(0, number - len(COLOURS) + 1)
                plain = name.removesuffix("-anneal").removesuffix("-muon")
                same = names.index(plain)
                colour = COLOURS[same] if same < len(COLOURS) else "#9aa5b1"
                own = sorted((p for p in points if p["method"] == name), key=lambda p: p["seconds"])
                deviations = [scale * (p[f"{score}_deviation"] or 0) for p in own]
                axes.errorbar(
                    [p["seconds"] for p in own],
                    [scale * p[score] for p in own],
                    yerr=[d / p["runs"] ** 0.5 for d, p in zip(deviations, own, strict=True)],
                    color=colour,
                    linestyle=LINES[name.removeprefix(plain)],
                    marker=MARKERS[others % len(MARKERS)],
                    markersize=5,
                    linewidth=2,
                    elinewidth=1,
                    label=titles[name],
                )
                for p in own if counts else ():
                    axes.annotate(
                        f"{p['runs']}",
                        (p["seconds"], scale * p[score]),
                        xytext=(5, 4),
                        textcoords="offset points",
                        color=colour,
                        fontsize=7,
                    )
            axes.set_xscale("log")
            ticks = [15, 30, 60, 120, 240, 480]
            axes.set_xticks(ticks)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xlabel("seconds of training")
            axes.set_ylabel(LABELS[score])
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        # So long that a dashed line is told from a plain one.
        figure.legend(handles, labels, loc="outside right center", frameon=False, handlelength=3.5)
        figure.suptitle(
            f"{' / '.join(task)}. A point: whole runs of one length, mean and standard error over "
            f"seeds and folds" + ", their number beside it" * counts
        )
        figure.savefig(file, metadata={"Date": None, "Creator": None})


def _update(
    figure: Path,
    values: Row,
    task: tuple[str, str],
    titles: dict[str, str],
    *,
    check: bool,
    counts: bool = True,
) -> bool:
    """Whether a figure was out of date; it is written unless this is to ``check`` it."""
    with tempfile.TemporaryDirectory() as folder:
        draw(values, task, titles, Path(folder) / figure.name, counts=counts)
        text = (Path(folder) / figure.name).read_text()
    is_outdated = not figure.is_file() or figure.read_text() != text
    if not check:
        figure.write_text(text)
    return is_outdated


def _study(name: str) -> Row:
    study: Row = yaml.safe_load((STUDIES / f"{name}.yaml").read_text())
    return study


def main(arguments: list[str]) -> int:
    """Update the page and the figures, or only check them."""
    check = "--check" in arguments
    values = json.loads((DOCS / "results" / "study.json").read_text())
    lines = (DOCS / "results" / "noise_scale.jsonl").read_text().splitlines()
    forms = json.loads((DOCS / "results" / "end_to_end.json").read_text())["rows"]
    signs, actions = (
        [row for row in forms if row["dataset"] == dataset]
        for dataset in ("isl_emergency8", "weizmann10")
    )
    playback = json.loads((DOCS / "results" / "playback.json").read_text())
    proof = _study("proof")
    methods = proof["methods"]
    num_norm_batches = proof["config"]["evaluation"]["precise_bn"]
    titles = {name: fields["title"] for name, fields in methods.items()}
    of_trial = {name: fields["title"] for name, fields in _study("playback")["methods"].items()}
    # Variants, which have another's rate, have a table: here they would lie on one another.
    drawn = {name: title for name, title in titles.items() if "rate_of" not in methods[name]}
    outdated = 0
    parts = []
    for task in tables.tasks_of(values):
        parts.append(f"### {' / '.join(task)}")
        if _points(values, task):
            name = f"study_{'_'.join(task)}.svg"
            outdated += _update(DOCS / "figures" / name, values, task, drawn, check=check)
            parts.append(f"![Accuracy over seconds](figures/{name})")
        if task in IN_SHORT:
            figure = DOCS / "figures" / f"short_{'_'.join(task)}.svg"
            few = {name: titles[name] for name in FEW}
            outdated += _update(figure, values, task, few, check=check, counts=False)
        parts.append(tables.points_table(values, task, titles))
    pages = {
        DOCS / "results.md": {
            "state": tables.state(values),
            "iso": savings.iso_table(values, titles),
            "cpu": savings.cpu_table(values, titles),
            "lengths": savings.lengths_table(values, titles),
            "epochs": savings.epochs_table(values, titles),
            "points": "\n\n".join(parts),
            "variants": tables.variants_table(values, titles),
            "rates": tables.rates_table(values, titles),
            "steps": tables.steps_table(values, titles),
            "quiet": tables.quiet_table(values, titles),
            "rows": tables.rows_table(values),
        },
        DOCS / "study.md": {"norms": muon_tables.with_norms(values, num_norm_batches)},
        DOCS / "which_schedule.md": {
            "pass": control_tables.pass_beside(values),
            "norms": muon_tables.with_norms_in_short(values, num_norm_batches),
            "headline": task_tables.headline(values),
            "study": task_tables.main_table(values),
            "longer": task_tables.longer_table(values),
            "regimes": task_tables.regimes_table(values, titles),
            "equal": savings.equal_table(values, titles, methods=("anneal",)),
            "equal_decoded": savings.equal_with_decoding(values),
        },
        DOCS / "what_was_tried.md": {
            "growing": task_tables.growing_table(values),
            "tokens": task_tables.tokens_table(values),
            "cycles": task_tables.cycles_beside(values),
            "equal_muon": savings.equal_table(
                values,
                titles,
                methods=("anneal-muon", "anneal-muon-mostly-full"),
                with_decoding=True,
            ),
            "controls": savings.equal_table(values, titles, methods=savings.CONTROLS),
            "parts": control_tables.parts_table(values),
            "parts_in_all": control_tables.parts_in_all(values),
            "muon": muon_tables.muon_table(values),
            "spans": tables.variants_table(
                values,
                titles,
                methods=[f"anneal-muon-{what}" for what in ("span", "crop", "view")],
            ),
            "muon_savings": muon_tables.muon_savings(values),
            "bfloat16": tables.bfloat16_table(values),
            "same_length": tables.same_length_table(values),
            "noise": tables.noise_table([json.loads(line) for line in lines]),
            "end_to_end": tables.end_to_end_table(signs),
            "end_to_end_of_actions": tables.end_to_end_table(actions),
            "playback": tables.trial_table(playback, of_trial),
        },
        DOCS.parent / "README.md": {
            "equal": savings.equal_in_short(values),
            "cycles": task_tables.cycles_in_short(values),
            "short": task_tables.savings_in_short(values),
            "control": control_tables.control_in_short(values),
            "longer": task_tables.longer_baselines(values),
            "in_all": tables.in_all(signs, actions),
        },
    }
    outdated += update_pages(pages, check=check)
    return int(check and outdated > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
