"""The results' tables and figures are those of their JSON, and its summaries those of its rows."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from study_file import read_study
from study_results import summary
from study_runs import StudyFolder

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_tables_and_the_figures_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, DOCS / "draw_results.py", "--check"], check=False)
    assert done.returncode == 0, "run python docs/draw_results.py"


def test_the_summaries_are_those_of_the_rows() -> None:
    values = json.loads((DOCS / "results" / "study.json").read_text())
    study = read_study(ROOT / "benchmarks" / "study" / "proof.yaml")
    # Through JSON, in which a pair is a list.
    found = json.loads(json.dumps(summary(study, values["rows"])))
    assert found == {name: values[name] for name in ("iso", "lengths", "points")}


def test_every_row_is_a_run_of_the_published_grid(tmp_path: Path) -> None:
    """Which counts the rates that are still to be tried, and none that need not be."""
    values = json.loads((DOCS / "results" / "study.json").read_text())
    study = read_study(ROOT / "benchmarks" / "study" / "proof.yaml")
    keys = ("dataset", "regime", "method", "length", "role", "seed", "fold")
    grid = set()
    for run in study.runs():
        task = (run.task.dataset, run.task.regime)
        grid.add((*task, run.method.name, run.length, run.role, run.seed, run.fold))
    rows = [tuple(row[key] for key in keys) for row in values["rows"]]
    assert set(rows) <= grid
    assert len(rows) == values["complete"]
    folder = StudyFolder(study, tmp_path, tmp_path, values)
    left = [run for run in folder.left(study.runs()) if folder.row(run) is None]
    assert len(rows) + len(left) == values["runs"] < len(study.runs())


def test_the_check_sees_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "docs"
    shutil.copytree(DOCS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "benchmarks" / "study", tmp_path / "benchmarks" / "study")
    shutil.copy(ROOT / "README.md", tmp_path)
    monkeypatch.syspath_prepend(str(copy))
    main = runpy.run_path(str(copy / "draw_results.py"))["main"]
    assert main(["--check"]) == 0
    page = copy / "results.md"
    text = page.read_text()
    page.write_text(text.replace("runs are complete", "runs are done"))
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert page.read_text() == text
    values = json.loads((copy / "results" / "study.json").read_text())
    values["rows"][0]["loss"] += 0.001
    (copy / "results" / "study.json").write_text(json.dumps(values))
    assert main(["--check"]) == 1


def test_the_headline_counts_tasks_by_their_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves out a task whose anneal has no run beside the whole baseline."""
    monkeypatch.syspath_prepend(str(DOCS))
    headline = runpy.run_path(str(DOCS / "savings_tables.py"))["headline"]

    def point(name: str, method: str, steps: int, top1: float) -> dict:
        return {
            "dataset": name,
            "regime": "r",
            "method": method,
            "length": steps / 900,
            "steps": steps,
            "multiply_adds": steps,
            "runs": 3,
            "top1": top1,
            "whole_baseline": {"top1": 0.8},
        }

    points = [point(name, "baseline", 900, 0.8) for name in "ab"]
    points += [
        point(name, "anneal", steps, top1)
        for name, steps, top1 in (
            ("a", 200, 0.7),
            ("a", 300, 0.81),
            ("a", 400, 0.9),
            ("b", 500, 0.8),
        )
    ]

    def row(name: str, factor: float | None, low: float | None) -> dict:
        saving = {"factor": factor, "low": low}
        scores = {"steps": saving, "multiply_adds": saving}
        return {"dataset": name, "regime": "r", "method": "anneal", "top1": scores}

    rows = [row("a", 4.0, 3.0), row("b", 2.0, 1.8), row("c", 2.5, 1.7), row("g", 2.5, None)]
    rows += [row("d", None, None)]
    rows += [row("e", 1.5, 1.4), {**row("f", None, None), "top1": {}}]
    rows += [{**row("a", 9.0, 9.0), "method": "pass"}]
    text = headline({"iso": rows, "points": points})
    assert "in 2 of 6 tasks" in text
    assert "1.8 to 3.0 times fewer multiply-adds, and between lengths it is 2.0 to 4.0 " in text
    assert "on average, but in fewer resamples, in c/r, g/r;" in text
    assert text.endswith("it stayed below in d/r, e/r:")
    assert headline({"iso": rows[2:6], "points": points}).count("multiply-adds") == 0
