"""The demo, in small: its five runs, its summary, and that finished runs are kept."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vcycle.config.fields import config_text
from vcycle.config.recipes import demo as demo_recipe
from vcycle.config.run import Evaluation, Model, RunConfig
from vcycle.data.manifest import Manifest
from vcycle.demo import comparison as demo
from vcycle.schedule.baseline import LearningRate
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
def test_the_demo_compares_five_runs_and_keeps_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = demo.run_demo(tmp_path / "demo", quick=True)
    summary = json.loads((tmp_path / "demo" / "summary.json").read_text())
    assert summary["rows"] == rows
    names = ["baseline", "baseline_short", "small", "multigrid", "anneal"]
    assert [row["name"] for row in rows] == names
    baseline, short, small, multigrid, anneal = rows
    assert baseline["steps"] == 70
    assert short["steps"] == small["steps"] == multigrid["steps"] == anneal["steps"] < 30
    assert baseline["clips"] == 70 * 8
    assert small["clips"] == small["steps"] * 32
    assert [row["name"] for row in rows if "full_shape_top1" in row] == ["small"]
    assert 0 <= small["full_shape_top1"] <= 1
    assert multigrid["clips"] == pytest.approx(1.5 * 70 * 8, abs=8 * 16)
    assert baseline["epochs"] == 70 * 8 / 24
    assert baseline["speedup"] == 1
    assert multigrid["speedup"] == baseline["seconds"] / multigrid["seconds"]
    assert all(0 <= row["top1"] <= 1 for row in rows)
    assert (tmp_path / "demo" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert len(Manifest.read(tmp_path / "demo" / "videos").split("train")) == 24
    assert capsys.readouterr().out.count("small clips at the full shape") == 1

    monkeypatch.chdir(tmp_path)
    assert demo.run_demo("demo", quick=True) == rows
    assert capsys.readouterr().out.count("done before") == 5

    (tmp_path / "demo" / "multigrid" / "result.json").unlink()  # as if it had been interrupted
    again = demo.run_demo(tmp_path / "demo", quick=True)
    assert capsys.readouterr().out.count("done before") == 4
    assert again[3]["top1"] == multigrid["top1"]

    moved = (tmp_path / "demo").rename(tmp_path / "moved")
    demo.run_demo(moved, quick=True)
    assert capsys.readouterr().out.count("done before") == 5
    moved.rename(tmp_path / "demo")

    theirs = tmp_path / "demo" / "multigrid"
    for text in ("recipe: theirs\n", "- demo\n", "recipe: [\n", ""):
        (theirs / "config.yaml").write_text(text)
        with pytest.raises(ValueError, match="multigrid: not a run of the demo"):
            demo.run_demo(tmp_path / "demo", quick=True)
    assert (theirs / "checkpoint.pt").is_file()


def test_a_run_of_other_code_is_kept_beside_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a run left that was killed before its first step is not."""
    config, run, said = demo_recipe(), tmp_path / "anneal", io.StringIO()

    def train(config: RunConfig, run: Path, *, resume: object, **_: object) -> dict[str, Any]:
        run.mkdir(exist_ok=resume == "auto")
        (run / "config.yaml").write_text(config_text(config))
        (run / "metrics.jsonl").write_text("{}\n")
        return {"resumed": resume}

    def train_again() -> object:
        console = Console(file=said, width=200)
        return demo._train(config, run, title="anneal", console=console)["resumed"]

    monkeypatch.setattr(demo, "train", train)
    assert train_again() is False
    assert train_again() == "auto"
    for name in ("config.yaml", "metrics.jsonl"):
        (run / name).unlink()
    (run / "manifest").mkdir()
    (run / ".DS_Store").touch()
    assert train_again() is False
    assert not (run / "manifest").exists()
    assert said.getvalue() == ""
    (tmp_path / "anneal.sha256").write_text("of another version")
    assert train_again() is False
    assert (tmp_path / "anneal-1" / "metrics.jsonl").is_file()
    kept = f"the run of other code or settings is now {tmp_path}/anneal-1"
    assert said.getvalue() == f"anneal: trained anew; {kept}\n"


def test_runs_differ_in_plan_and_rate_alone_and_small_clips_in_their_shape() -> None:
    rates = {name: 0.001 * (1 + number) for number, name in enumerate(demo.RATES)}
    configs = demo.demo_configs(Path("videos"), quick=False, rates=rates)
    assert list(configs) == list(demo.TITLES) == list(demo.RATES)
    plans = {name: config.plan() for name, config in configs.items()}
    assert len(plans["baseline"]) == configs["baseline"].baseline.steps
    num_steps = len(plans["multigrid"])
    assert num_steps < len(plans["baseline"]) / 3
    assert all(len(plan) == num_steps for name, plan in plans.items() if name != "baseline")

    small = configs.pop("small")
    found = {name: config.baseline.learning_rate.base for name, config in configs.items()}
    assert found == {name: rate for name, rate in rates.items() if name != "small"}
    multigrid, rate = demo.Multigrid(), LearningRate(1)
    same = [
        replace(config, multigrid=multigrid, baseline=replace(config.baseline, learning_rate=rate))
        for config in configs.values()
    ]
    assert same.count(same[0]) == len(same) == 4

    assert small.baseline.shape == Shape(8, 45, 45)
    assert small.baseline.batch_size == 32
    assert small.baseline.learning_rate.base == pytest.approx(2 * rates["small"])
    assert (small.data.stride, small.data.short_side) == (2, (46, 59))
    assert plans["small"].shapes == (small.baseline.shape,)
    kept = replace(small, baseline=same[0].baseline, data=same[0].data, multigrid=multigrid)
    assert kept == same[0]


def test_the_recipe_is_the_row_of_the_papers_cycles() -> None:
    configs = demo.demo_configs(Path("videos"), quick=False)
    recipe = demo_recipe()
    assert configs["multigrid"] == replace(recipe, data=replace(recipe.data, manifest="videos"))
