"""The results' tables and figures are those of their JSON, and its summaries those of its rows."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from study_file import read_study
from study_results import summary
from study_runs import StudyFolder

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_tables_and_the_figures_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    main = runpy.run_path(str(DOCS / "draw_results.py"))["main"]
    assert main(["--check"]) == 0, "run python docs/draw_results.py"


def test_the_summaries_are_those_of_the_rows() -> None:
    values = json.loads((DOCS / "results" / "study.json").read_text())
    study = read_study(ROOT / "benchmarks" / "study" / "proof.yaml")
    # Through JSON, in which a pair is a list.
    found = json.loads(json.dumps(summary(study, values["rows"])))
    left, numbers = parted(found)
    expected, expected_numbers = parted({name: values[name] for name in found})
    assert left == expected
    # Sums depend on the CPU, in their last digit.
    np.testing.assert_allclose(numbers, expected_numbers, rtol=1e-9, atol=1e-12)


def parted(value: Any) -> tuple[Any, list[float]]:
    """JSON with a place in every float's stead, and the floats in their order."""
    numbers: list[float] = []

    def without(each: Any) -> Any:
        if isinstance(each, dict):
            return {key: without(inner) for key, inner in each.items()}
        if isinstance(each, list):
            return [without(inner) for inner in each]
        if isinstance(each, float):
            numbers.append(each)
            return "a float"
        return each

    return without(value), numbers


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

    def draw(values: dict, task: tuple[str, str], titles: dict, file: Path, **_: object) -> None:
        file.write_text(f"{task}: {values['rows'][0]['loss']}")

    monkeypatch.setitem(main.__globals__, "draw", draw)  # fast
    assert main(["--check"]) == 1  # the figures are another's
    assert main([]) == 0
    assert main(["--check"]) == 0
    page = copy / "results.md"
    text = page.read_text()
    assert text == (DOCS / "results.md").read_text()
    page.write_text(text.replace("runs are complete", "runs are done"))
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert page.read_text() == text
    values = json.loads((copy / "results" / "study.json").read_text())
    values["rows"][0]["loss"] += 0.001
    (copy / "results" / "study.json").write_text(json.dumps(values))
    assert main(["--check"]) == 1


def point(name: str, method: str, steps: int, top1: float, **others: object) -> dict:
    """A length, whose runs' seeds and folds have a whole baseline of 0.8."""
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
        "gain": {},
        **others,
    }


def saving(
    factor: float | None,
    low: float | None,
    high: float | None,
    reached: float,
    bound: float = 5.0,
    cells: int = 3,
) -> dict:
    values = {"factor": factor, "low": low, "high": high, "reached": reached}
    return {**values, "bound": bound, "at_least": False, "cells": cells, "fewest": 3}


def iso_row(name: str, *found: float | None, cells: int = 3) -> dict:
    costs = ("steps", "multiply_adds", "seconds", "seconds_with_decoding")
    scores = dict.fromkeys(costs, saving(*found, cells=cells)) if found else {}
    return {"dataset": name, "regime": "r", "method": "anneal", "top1": scores, "loss": scores}


@pytest.fixture
def task_tables(monkeypatch: pytest.MonkeyPatch) -> dict:
    monkeypatch.syspath_prepend(str(DOCS))
    return runpy.run_path(str(DOCS / "task_tables.py"))


def test_the_headline_counts_tasks_by_their_intervals(task_tables: dict) -> None:
    """And leaves out a task whose anneal has no run beside the whole baseline."""
    rows = [iso_row("a", 4.0, 3.0, None, 1.0, cells=6)]
    rows += [iso_row("b", 2.0, 1.8, 3.0, 1.0, cells=6), iso_row("i", 4.0, 3.0, None, 1.0)]
    rows += [iso_row("c", 2.5, 1.7, None, 1.0), iso_row("g", 2.5, None, None, 0.9)]
    rows += [iso_row("d", None, None, None, 0.0), iso_row("e", 1.5, 1.4, None, 1.0), iso_row("f")]
    rows += [{**rows[0], "method": "pass"}]
    on_cpu = [iso_row("a", 4.0, 2.0, None, 1.0, cells=6)]
    rows += [iso_row("h", None, None, None, 0.2)]
    rows += [{**iso_row("h", 2.0, 1.5, None, 1.0), "method": "anneal-retuned"}]
    rows += [{**iso_row("a", 2.0, 1.5, None, 1.0), "method": "anneal-retuned"}]
    text = task_tables["headline"]({"iso": rows, "iso_cpu": on_cpu})
    assert "- in 2 of 8 tasks (1 of 1 on a, 1 of 1 on b, 0 of 1 on i, 0 of 1 on c, " in text
    assert "\n- in as many resamples, but of one seed, in i/r\n" in text
    assert (
        " begins there or above: a/r, b/r. In three eighths or fewer it did in 1 of these, "
        "by the CPUs' runs alone in 0\n" in text
    )
    assert "- on average, but in fewer resamples, in c/r, g/r\n" in text
    assert "\n- not so, but with a smaller saving in steps, in e/r (1.5x)\n" in text
    assert "\n- not in d/r, h/r at the rate that another length chose; at one" in text
    assert text.endswith(", in h/r, too")


def test_where_the_papers_cycles_came_to_the_baseline(task_tables: dict) -> None:
    """Of the cells that the cycles have; an anneal that lacks one of them is not counted."""

    def run(name: str, method: str, length: float, top1: float, seed: int = 0) -> dict:
        of = {"dataset": name, "regime": "r", "role": "final", "fold": 0}
        return of | {"method": method, "length": length, "top1": top1, "loss": 1.0, "seed": seed}

    rows = [run(name, "baseline", 1, 0.8) for name in "abc"]
    rows += [run("a", "baseline", 1, 0.1, seed=1)]
    rows += [run("a", "paper", 1.5, 0.7), run("b", "paper", 1.5, 0.8), run("d", "paper", 1.5, 0.9)]
    rows += [run("a", "paper", 3.0, 0.81), run("b", "paper", 3.0, 0.9), run("a", "paper", 2.0, 0.9)]
    rows += [run("a", "anneal", 0.276, 0.79), run("a", "anneal", 0.276, 0.9, seed=1)]
    rows += [run("b", "anneal", 0.555, 0.9, seed=1), run("c", "anneal", 0.276, 0.9)]
    rows += [run("a", "anneal", 0.555, 0.8)]
    text = task_tables["cycles_beside"]({"rows": rows})
    assert "The paper gives its cycles 1.5 times the baseline's epochs; " in text
    assert text.splitlines()[-2:] == ["| 1.5 | 1 of 2 | 0 of 1 |", "| 3 | 2 of 2 | 1 of 1 |"]


def test_ways_to_coarsen_a_transformers_clips_are_of_the_same_runs(task_tables: dict) -> None:
    def run(method: str, length: float, top1: float, seed: int = 0) -> dict:
        of = {"dataset": "a", "regime": "r", "role": "final", "fold": 0, "loss": 1.0}
        return of | {"method": method, "length": length, "top1": top1, "seed": seed}

    rows = [run("anneal", 0.276, 0.6), run("anneal", 0.276, 0.9, seed=1)]
    rows += [run("tokens", 0.276, 0.5), run("tokens", 0.153, 0.4)]
    rows += [run("tokens-and-grids", 0.276, 0.3), run("tokens-and-grids", 0.191, 0.2)]
    assert task_tables["tokens_table"]({"rows": rows}).splitlines()[2:] == [
        "| a/r | multiply-adds | 1 | 60.0 | 1.000 | 40.0 | 1.000 | 20.0 | 1.000 |",
        "| a/r | steps | 1 | 60.0 | 1.000 | 50.0 | 1.000 | 30.0 | 1.000 |",
    ]
    rows += [run("anneal-growing-full", 0.276, 0.7, seed=1), run("anneal-growing-full", 1, 0.8)]
    growing = task_tables["growing_table"]({"rows": rows}).splitlines()[2:]
    assert growing == [
        "| a/r | 0.276 | 1 | 90.0 | 1.000 | 70.0 | 1.000 |",
        "| a/r | 1 | 1 | - | - | 80.0 | 1.000 |",
    ]


def test_readme_counts_in_short(
    task_tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [
        point(name, "paper", 900, top1, length=1.5) for name, top1 in (("a", 0.7), ("b", 0.8))
    ]
    points += [point("a", "paper", 900, 0.9, length=3.0)]
    text = task_tables["cycles_in_short"]({"points": points})
    assert "at their 1.5 times the epochs, reached the whole baseline in 1 of 2 tasks" in text
    monkeypatch.syspath_prepend(str(DOCS))
    equal = runpy.run_path(str(DOCS / "savings_tables.py"))["equal_in_short"]

    def gained(method: str, gain: float) -> dict:
        scores = {"mean": gain, "low": gain - 0.1}
        return timed(method, 100, 0.8, gain_with_decoding={"top1": scores})

    def timed(method: str, seconds: int, top1: float, **others: Any) -> dict:
        own = {"gain_with_decoding": {}, **others}
        return point("a", method, 100, top1, seconds_with_decoding=seconds, **own)

    points = [gained("anneal", 0.2), gained("anneal", -0.1), gained("anneal-muon", 0.1)]
    points += [timed("anneal", 100, 0.8), gained("pass", 0.1)]
    points += [timed("baseline", seconds, 0.85) for seconds in (50, 100)]
    points += [timed("anneal", 101, 0.84), timed("anneal", 120, 0.86)]
    points += [timed("baseline-muon", 100, 0.9)]
    text = equal({"points": points})
    assert "ahead at 1 of 2 lengths under AdamW or SGD (1 by intervals above zero)" in text
    assert "and 1 of 1 lengths under Muon (0 by intervals above zero)." in text
    assert text.endswith(
        "2 longer ones took more time than any baseline: 1 of them ended below it."
    )


def test_what_a_baseline_with_the_anneals_rate_leaves_of_its_saving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    tables = runpy.run_path(str(DOCS / "control_tables.py"))

    def run(method: str, length: float, top1: float, seed: int = 0) -> dict:
        own = {"dataset": "a", "regime": "scratch", "role": "final", "fold": 0, "loss": 1 - top1}
        return {**own, "method": method, "length": length, "seed": seed, "top1": top1}

    rows = [run("baseline", 0.294, 0.4), run("baseline", 1, 0.8), run("baseline", 1, 0.1, seed=1)]
    rows += [run("baseline-anneal", 0.294, 0.5), run("baseline-anneal", 1, 0.7)]
    rows += [run("baseline-anneal", 1, 0.6, seed=2), run("baseline-muon", 1, 0.8, seed=1)]
    rows += [run("anneal", 0.276, 0.9), run("anneal", 1, 0.95), run("anneal", 1, 0.85, seed=1)]
    rows += [run("baseline-muon-anneal", 1, top1, seed=seed) for seed, top1 in enumerate((0, 0.9))]
    rows += [run("anneal-muon", 1, 0.7, seed=1)]
    costs = (
        *(("baseline-anneal", 0.294, 294), ("baseline-anneal", 1, 1000)),
        *(("baseline-muon-anneal", 1, 1000), ("anneal", 0.276, 290)),
        *(("anneal-muon", 1, 1200), ("anneal-muon", 1.5, 1800)),
    )
    points = [
        point("a", method, cost, 0.8 if cost == 1200 else 0.9, length=length, regime="scratch")
        | {"seconds_with_decoding": cost}
        for method, length, cost in costs
    ]
    gains = [{"length": 0.276, "top1": {"mean": 0.1, "low": low}} for low in (0.01, -0.1)]
    controls = [
        {**iso_row("a", 2.0, 1.5, None, 1.0), "regime": "scratch", "gains": gains}
        | {"against": "baseline-anneal"},
        {**iso_row("a", None, None, None, 0.3), "regime": "scratch", "gains": []}
        | {"against": "baseline-muon-anneal"},
    ]
    values = {"rows": rows, "points": points, "iso_controls": controls}
    _, _, *lines = tables["parts_table"](values).splitlines()
    short = "40.0 | 0.600 | 50.0 | 0.500 | 90.0 | 0.100"
    whole = "80.0 | 0.200 | 70.0 | 0.300 | 95.0 | 0.050"
    muon = "80.0 | 0.200 | 90.0 | 0.100 | 70.0 | 0.300"  # of the seed that all three have
    assert lines == [
        f"| a/scratch | AdamW | 294 | 1 | {short} |  |",
        f"| a/scratch | AdamW | 1,000 | 1 | {whole} | 2.0x [1.5, -] |",
        f"| a/scratch | Muon | 1,000 | 1 | {muon} | not reached (< 5.0x; reached in 30%) |",
    ]
    text = tables["control_in_short"](values)
    assert "rate, of 3 runs, the anneal saves in multiply-adds: " in text
    assert "under AdamW 2.0x [1.5, -] on a; under Muon not reached on a." in text
    assert (
        "the anneal was ahead at 2 of 2 lengths; of 2 longer ones, which took more time, 1 ended"
        in (text)
    )
    text = tables["parts_in_all"](values)
    assert text.splitlines()[4:7] == [
        "| 0.294 | AdamW or SGD | +10.0 | +40.0 | 1 of 1 |",
        "| 1 | AdamW or SGD | -10.0 | +25.0 | 1 of 1 |",
        "| 1 | Muon | +10.0 | -20.0 | 0 of 1 |",
    ]
    assert ". 1 of these 2 are ahead by intervals above zero" in text


def test_where_the_pass_was_not_below_the_anneal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every task and length that both ran, by the runs that both have."""
    monkeypatch.syspath_prepend(str(DOCS))
    pass_beside = runpy.run_path(str(DOCS / "control_tables.py"))["pass_beside"]

    def run(name: str, method: str, length: float, top1: float, seed: int = 0) -> dict:
        own = {"dataset": name, "regime": "r", "role": "final", "fold": 0, "loss": 1}
        return {**own, "method": method, "length": length, "seed": seed, "top1": top1}

    rows = [run("a", "anneal", 0.5, 0.9), run("a", "pass", 0.5, 0.8), run("a", "pass", 1, 0.9)]
    rows += [run("a", "anneal", 2, 0.9), run("a", "pass", 2, 0.6), run("b", "anneal", 0.5, 0.7)]
    rows += [run("b", "pass", 0.5, 0.72), run("b", "pass", 0.5, 0.1, seed=1)]
    text = pass_beside({"rows": rows})
    assert (
        "below the anneal's at 2 of 3 lengths of 2 tasks, by up to 30 points. It was level" in text
    )
    assert text.endswith(" b/r at 0.5 (+2.0 points, 1 runs).")


def test_what_muon_and_the_anneal_save_beside_the_aim_and_with_norm_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    tables = runpy.run_path(str(DOCS / "muon_tables.py"))
    rows = []
    for name, over_adamw, over_muon in (("isl_emergency8", 8.0, None), ("weizmann10", 4.0, 2.0)):
        row = {**iso_row(name, over_adamw, 1.5, None, 1.0), "regime": "scratch"}
        rows += [{**row, "method": method} for method in ("anneal-muon", "baseline-muon")]
        against = {**iso_row(name, over_muon, None, None, 0.5), "regime": "scratch"}
        rows.append({**against, "method": "anneal-muon", "against": "baseline-muon"})
    names = ("isl_emergency8", "weizmann10")
    points = [point(name, "baseline", 800, 0.8, length=1, regime="scratch") for name in names]
    values = {"iso": rows, "points": points, "steps": []}
    text = tables["muon_savings"](values)
    assert "met it on 1 of 2 (8.0x on isl_emergency8, 4.0x on weizmann10); over Muon's" in text
    assert text.endswith("on 0 of 2 (not reached on isl_emergency8, 2.0x on weizmann10).")
    text = tables["with_norms"](values, 24)
    # (800 + 8) / (100 + 8) and (800 + 8) / (200 + 8); with all 24, 824 / 124 and 824 / 224.
    assert "7.5x (in place of 8.0x) on isl_emergency8, 3.9x (in place of 4.0x) on weizm" in text
    assert "6.6x (in place of 8.0x) on isl_emergency8, 3.7x (in place of 4.0x) on weizm" in text
    text = tables["with_norms_in_short"](values, 24)
    assert "README) would save 7.5x, 3.9x in multiply-adds, in place of 8.0x, 4.0x (" in text


def test_a_trial_apart_has_a_row_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    tables = runpy.run_path(str(DOCS / "study_tables.py"))
    points = [point("a", "baseline", 1000, 0.6), point("a", "pass", 500, 0.55, loss=0.8)]
    points[0]["loss"] = 0.7
    text = tables["trial_table"]({"points": points}, {"baseline": "plain", "pass": "one pass"})
    _, _, *lines = text.splitlines()
    assert lines == [
        "| plain | 1,000 | 1.0x | 3 | 60.0 | 0.700 |",
        "| one pass | 500 | 2.0x | 3 | 55.0 | 0.800 |",
    ]


def test_what_chance_would_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks of one set share its three folds: signs of a fold are drawn together."""
    monkeypatch.syspath_prepend(str(DOCS))
    chances = runpy.run_path(str(DOCS / "savings_tables.py"))["_chances"]

    def of(name: str, *folds: float) -> dict:
        return {"dataset": name, "gain_with_decoding": {"top1": {"folds": list(folds)}}}

    assert chances([of("a", 1, 1, 1)]) == (1, 1, "50")  # of eight, those of two or three gains
    assert chances([of("a", 1, 1, 1), of("a", 2, 2, 2)]) == (2, 2, "50")
    assert chances([of("a", 1, 1, 1), of("b", 2, 2, 2)]) == (2, 2, "25")
    assert chances([of("a", 5, 1, -1)]) == (0, 0, "50")
    assert chances([of("a", 9, 2, 3)]) == (1, 0, "50")


def test_the_main_table_compares_runs_of_the_same_seeds_and_folds(task_tables: dict) -> None:
    points = [point(name, "baseline", 900, 0.85) for name in "ab"]
    points += [point("a", "anneal", steps, top1) for steps, top1 in ((200, 0.7), (300, 0.81))]
    points += [point("b", "anneal", 400, 0.79)]
    rows = [iso_row("a", 3.5, 2.0, None, 1.0), iso_row("b", None, None, None, 0.3)]
    *_, first, second = task_tables["main_table"]({"iso": rows, "points": points}).splitlines()
    cells = " | ".join(["3.5x [2.0, -]"] * 3)
    assert first == f"| a/r | 3 | 80.0 | 81.0 | 300 of 900 (3) | 3.0x | {cells} |"
    cells = " | ".join(["not reached (< 5.0x; reached in 30%)"] * 3)
    assert second == f"| b/r | 3 | 85.0 | - | - | - | {cells} |"


def test_the_short_table_is_of_random_weights_and_names_both_baselines(task_tables: dict) -> None:
    methods = [("anneal", None, 4.0), ("baseline-muon", None, 3.0), ("anneal-muon", None, 6.0)]
    methods += [("anneal-muon", "baseline-muon", 2.0)]
    rows = [
        {**iso_row("a", factor, 1.5, None, 1.0), "method": method, "regime": "scratch"}
        | ({"against": against} if against else {})
        for method, against, factor in methods
    ]
    rows += [iso_row("b", 9.0, 8.0, None, 1.0)]
    points = [point("a", "baseline", 900, 0.85, length=1, regime="scratch")]
    points += [point("a", "baseline-muon", 900, 0.9, length=1, regime="scratch")]
    points += [point("a", "baseline-muon", 450, 0.7, length=0.5, regime="scratch")]
    for row in rows:
        if row["method"] == "baseline-muon":  # whose steps have not been timed
            row["top1"] = {"multiply_adds": row["top1"]["multiply_adds"]}
    text = task_tables["savings_in_short"]({"iso": rows, "points": points})
    _, _, *lines = text.splitlines()
    ours, muon, both, beside = (f"{factor:.1f}x [1.5, -]" for *_, factor in methods)
    assert lines == [
        f"| multiply-adds | a | {ours} | {muon} | {both} | 90.0 (80.0) | {beside} |",
        f"| seconds with decoding | a | {ours} | - | {both} | 90.0 (80.0) | {beside} |",
    ]


def test_what_a_loop_takes_in_all_is_of_the_folds_that_every_form_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    tables = runpy.run_path(str(DOCS / "study_tables.py"))
    seconds = {"plain": 100.0, "plain-fast": 50.0, "anneal": 20.0, "anneal-muon": 10.0}
    seconds |= {"muon": 25.0, "baseline": 40.0}
    rows = [
        {
            "form": form,
            "title": form,
            "fold": 0,
            "seconds": each,
            "top1": 0.8,
            "loss": 1,
            "steps": 9,
        }
        for form, each in seconds.items()
    ]
    rows += [{**rows[0], "fold": 1, "seconds": 900.0}]
    top1 = {"baseline": 0.9, "anneal": 0.85}
    rows = [{**row, "top1": top1.get(row["form"], 0.8)} for row in rows]
    actions = [{**row, "seconds": 2 * row["seconds"], "videos": 30} for row in rows]
    text = tables["in_all"](rows, actions)
    assert "on 1 folds of sign language, and on 1 of Weizmann's actions" in text
    assert text.splitlines()[4:10] == [
        "| plain PyTorch loop | 100 | 80.0 | 200 | 80.0 |",
        "| the same in channels-last, in bfloat16 where the CPU is made for it "
        "| 50 | 80.0 | 100 | 80.0 |",
        "| vcycle's baseline | 40 | 90.0 | 80 | 90.0 |",
        "| half of it under Muon | 25 | 80.0 | 50 | 80.0 |",
        "| `anneal` | 20 | 85.0 | 40 | 85.0 |",
        "| both | 10 | 80.0 | 20 | 80.0 |",
    ]
    assert "`anneal` is 5.0 times as fast as the plain loop, and both 10.0 times" in text
    assert "of either, a factor of 2.0 is channels-last bfloat16's" in text
    assert "they are 2.0 and 4.0 times as fast, and ended 5.0 and 10.0 points lower. On" in text
    assert "beside vcycle's baseline they are 2.0 and 4.0 times as fast. What" in text
    assert text.endswith("on 30 videos, is mostly chance.")
    assert "| plain | 1 | 9 | 100 |" in tables["end_to_end_table"](rows)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ((2.0, 1.5, None, 1.0), "wins"),
        ((2.0, 0.9, 3.0, 1.0), "open"),
        ((2.0, None, 3.0, 0.9), "open"),
        ((0.8, 0.5, 0.9, 1.0), "loses"),
        ((None, None, None, 0.01, 1.8), "loses"),
        ((None, None, None, 0.01, 3.5), "falls short with 3.5x less"),
        ((None, None, 1.6, 0.2), "open"),
    ],
)
def test_a_regime_is_won_or_lost_by_the_whole_interval(
    task_tables: dict, found: tuple, verdict: str
) -> None:
    top1, above = {"low": 0.05, "high": 0.2}, {"low": 0.1, "high": 0.5}
    gains = [{"top1": top1, "loss": {"low": -0.5, "high": -0.1}}]
    gains += [{"top1": {**top1, "low": -0.05}, "loss": above}]
    points = [point("a", "anneal", 300 + k, 0.8, gain=gain) for k, gain in enumerate([*gains, {}])]
    text = task_tables["regimes_table"](
        {"iso": [iso_row("a", *found)], "points": points}, {"anneal": "anneal"}
    )
    line = text.splitlines()[-1]
    ends = "wins 1 of 2 | wins 1, loses 1 of 2"
    assert line == f"| a/r | anneal | 3 | {verdict} | {verdict} | {ends} |"
