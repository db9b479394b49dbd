"""The demo, in small: its three runs, its summary, and that finished runs are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vcycle.config.recipes import demo as demo_recipe
from vcycle.config.run import Evaluation, Model, RunConfig
from vcycle.data.manifest import Manifest
from vcycle.demo import comparison as demo
from vcycle.schedule.shape import Shape


@pytest.fixture
def small_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's recipe with fewer, smaller steps."""

    def small(*, quick: bool = False) -> RunConfig:
        config = demo_recipe(quick=quick)
        baseline = replace(
            config.baseline,
            shape=Shape(8, 32, 32),
            steps=70,
            num_videos=24,
            stage_ends=(30, 50),
        )
        return replace(
            config,
            baseline=baseline,
            data=replace(config.data, short_side=(36, 42)),
            model=Model("resnet3d_tiny", {"width": 4}),
            evaluation=Evaluation(times=2, batch_size=6),
        )

    monkeypatch.setattr(demo, "demo", small)


@pytest.mark.usefixtures("small_recipe")
def test_the_demo_compares_three_runs_and_keeps_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = demo.run_demo(tmp_path / "demo", quick=True)
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert summary["rows"] == rows
    assert [row["name"] for row in rows] == ["baseline", "baseline_short", "multigrid"]
    baseline, short, multigrid = rows
    assert baseline["steps"] == 70
    assert short["steps"] == multigrid["steps"] < 30
    assert baseline["clips"] == 70 * 8
    assert multigrid["clips"] == pytest.approx(1.5 * 70 * 8, abs=8 * 16)
    assert baseline["epochs"] == 70 * 8 / 24
    assert baseline["speedup"] == 1
    assert multigrid["speedup"] == baseline["seconds"] / multigrid["seconds"]
    assert all(0 <= row["top1"] <= 1 for row in rows)
    assert (tmp_path / "demo" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(Manifest.read(tmp_path / "demo" / "videos").split("train")) == 24
    capsys.readouterr()

    assert demo.run_demo(tmp_path / "demo", quick=True) == rows
    assert capsys.readouterr().out.count("done before") == 3

    (tmp_path / "demo" / "multigrid" / "result.json").unlink()  # as if it had been interrupted
    again = demo.run_demo(tmp_path / "demo", quick=True)
    assert capsys.readouterr().out.count("done before") == 2
    assert again[2]["top1"] == rows[2]["top1"]

    theirs = tmp_path / "demo" / "multigrid"
    (theirs / "config.yaml").write_text("recipe: theirs\n")
    with pytest.raises(ValueError, match="multigrid: not a run of the demo"):
        demo.run_demo(tmp_path / "demo", quick=True)
    assert (theirs / "checkpoint.pt").is_file()


def test_three_runs_differ_in_their_plan_alone() -> None:
    configs = demo.demo_configs(Path("videos"), quick=False)
    same = {str(replace(config, multigrid=demo.Multigrid())) for config in configs.values()}
    assert len(same) == 1
    plans = {name: config.plan() for name, config in configs.items()}
    assert len(plans["baseline_short"]) == len(plans["multigrid"])
    assert len(plans["baseline"]) == configs["baseline"].baseline.steps
