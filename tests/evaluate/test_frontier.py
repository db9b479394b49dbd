"""Which shapes lie on a frontier, and their plot."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as st

from vcycle.cli.main import main
from vcycle.evaluate.frontier import mark_frontiers
from vcycle.report.frontier_plot import draw_frontiers


def row(shape: str, top1: float, multiply_adds: int, milliseconds: float) -> dict[str, Any]:
    costs = {"multiply_adds": multiply_adds, "milliseconds": milliseconds}
    return {"shape": shape, "top1": top1, **costs, "intervals": {"top1": [top1 - 0.1, top1 + 0.1]}}


ROWS = [
    row("4x16x16", 0.5, 10, 2.0),
    row("4x32x32", 0.4, 20, 1.0),  # costs more multiply-adds and is worse, but is the fastest
    row("8x16x16", 0.7, 20, 3.0),
    row("8x32x32", 0.7, 40, 4.0),  # as good as a cheaper one
]


def test_a_frontier_by_hand() -> None:
    found = {each["shape"]: each["frontier"] for each in mark_frontiers(ROWS)}
    assert found == {
        "4x16x16": ["multiply_adds", "milliseconds"],
        "4x32x32": ["milliseconds"],
        "8x16x16": ["multiply_adds", "milliseconds"],
        "8x32x32": [],
    }


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=8))
def test_no_row_of_a_frontier_beats_another_and_every_other_is_beaten(
    pairs: list[tuple[int, int]],
) -> None:
    rows = mark_frontiers([row("x", score, cost, cost) for score, cost in pairs])
    chosen = [each for each in rows if "multiply_adds" in each["frontier"]]
    assert max(each["top1"] for each in rows) == max(each["top1"] for each in chosen)
    for one, other in product(chosen, chosen):
        if one["multiply_adds"] < other["multiply_adds"]:
            assert one["top1"] < other["top1"]
    for each in rows:
        if each not in chosen:
            assert any(
                better["multiply_adds"] <= each["multiply_adds"] and better["top1"] >= each["top1"]
                for better in chosen
            )


def test_the_plot_names_every_shape_and_is_the_same_each_time(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.svg", "b.svg")]
    for file in files:
        draw_frontiers({"one": mark_frontiers(ROWS), "two": mark_frontiers(ROWS[:2])}, file)
    assert files[0].read_bytes() == files[1].read_bytes()
    drawn = files[0].read_text()
    ElementTree.fromstring(drawn)
    for word in ("4x16x16", "8x32x32", "multiply-adds of a clip", "milliseconds of a clip", "two"):
        assert word in drawn


def test_runs_are_named_as_their_folders_are(tmp_path: Path) -> None:
    file = tmp_path / "a.svg"
    names = ("_a", "r$x", "$_{", "b")
    draw_frontiers({name: mark_frontiers(ROWS) for name in names}, file)
    assert all(f"<!-- {name} -->" in file.read_text() for name in names)


def test_the_command_marks_and_draws_the_frontier(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "frontier.png"
    words = ["eval", str(trained_run), "--shapes", "4x16x16,8x32x32"]
    assert main([*words, "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    table = capsys.readouterr().out
    assert "* multiply-adds" in table
    assert "no shape that costs less of it is as accurate" in table
    for wrong, message in (
        ([*words, "--plot", str(tmp_path / "x.pdf")], "ends in .png or .svg"),
        ([*words[:2], "--plot", str(file)], "give --shapes all too"),
        ([*words[:2], "--shapes", "all,8"], "shape"),
    ):
        assert main(wrong) == 2
        assert message in capsys.readouterr().err


def test_multiply_adds_that_cannot_be_counted_are_said(
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(*_: Any) -> int:
        raise RuntimeError("Tensor on device cpu is not on the expected device meta!")

    monkeypatch.setattr("vcycle.models.count.multiply_adds", fails)
    words = ["eval", str(trained_run), "--shapes", "4x16x16,8x32x32"]
    assert main([*words, "--plot", str(tmp_path / "a.svg")]) == 0
    assert capsys.readouterr().out.count("not counted  multiply-adds") == 2
    drawn = (tmp_path / "a.svg").read_text()
    assert "8x32x32" in drawn
    assert "multiply-adds of a clip: not counted" in drawn
    assert main([*words, "--json"]) == 0
    text = capsys.readouterr().out
    rows = json.loads(text)["shapes"]
    assert [row["multiply_adds"] for row in rows] == [None, None]
    assert {cost for row in rows for cost in row["frontier"]} == {"milliseconds"}
    (tmp_path / "evaluation.json").write_text(text)
    figures = ["--hub", str(tmp_path / "hub"), "--evaluation", str(tmp_path / "evaluation.json")]
    assert main(["export", str(trained_run), *figures]) == 0
    assert "| not counted |" in (tmp_path / "hub" / "README.md").read_text()
