"""A run whose coarse phases keep a share of the tokens, from its plan to its costs."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from vcycle.config.run import Data, Evaluation, Model, Optimizer, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.models import TokenDrop, build_model
from vcycle.models.count import multiply_adds
from vcycle.report.runs import read_run
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape, ShapeRule
from vcycle.train.gradients import Gradients
from vcycle.train.measure.rehearsal import Rehearsed, rehearse
from vcycle.train.measure.timing import Kind
from vcycle.train.run import train

OPTIONS = {"width": 32, "depth": 1, "heads": 2}


def config(videos: Path) -> RunConfig:
    cycle = LongCycle(((0.5, 1.0), (1.0, 1.0), (1.0, 1.0)), tokens=(0.5, 0.5, 1.0), once=True)
    return RunConfig(
        recipe="test",
        baseline=Baseline(Shape(4, 32, 32), 4, 12, 24, LearningRate(0.001)),
        multigrid=Multigrid(
            long_cycle=cycle,
            short_cycle=None,
            fine_tuning=False,
            epoch_factor=1.0,
            norm_group=None,
            rule=ShapeRule(frame_multiple=2, side_multiple=16),
        ),
        data=Data(str(videos), stride=1, short_side=(36, 48), num_workers=0),
        model=Model("video_vit_tiny", OPTIONS),
        optimizer=Optimizer("adamw"),
        evaluation=Evaluation(times=1, batch_size=6),
        threads=1,
    )


def test_a_run_counts_what_it_keeps(synthetic_videos: Path, tmp_path: Path) -> None:
    asked = config(synthetic_videos)
    train(asked, tmp_path / "run")
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["token_share"] for row in rows] == [step.token_share for step in asked.plan()]
    counts = json.loads((tmp_path / "run" / "multiply_adds.json").read_text())
    assert list(counts) == ["2x32x32@0.5", "4x32x32@0.5", "4x32x32"]
    record = read_run(tmp_path / "run")
    classes = len(record.validation["classes"])
    model = build_model("video_vit_tiny", num_classes=classes, **OPTIONS)
    spent = sum(
        step.batch_size * multiply_adds(model, step.shape, step.token_share)
        for step in asked.plan()
    )
    assert record.points[-1].multiply_adds == spent


def test_the_rehearsal_times_what_each_phase_keeps(
    synthetic_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two phases differ in the share of the tokens alone."""
    asked = config(synthetic_videos)
    whole = [each for each in asked.plan().mini_batches() if each.shape.frames == 4]
    assert [each.token_share for each in whole] == [0.5, 1.0]
    found: list[dict[Kind, float]] = []
    kept: list[float] = []
    forward = TokenDrop.forward

    def recorded(layer: TokenDrop, tokens: Tensor) -> Tensor:
        out = forward(layer, tokens)
        kept.append(out.shape[1] / tokens.shape[1])
        return out

    def rehearsed(*arguments: Any, **options: Any) -> Rehearsed:
        seen = rehearse(*arguments, **options)
        found.append(seen.steps)
        return seen

    monkeypatch.setattr(TokenDrop, "forward", recorded)
    monkeypatch.setattr("vcycle.train.measure.measuring.rehearse", rehearsed)
    train(asked, tmp_path / "run", dry_run=True)
    assert set(found[0]) == {Kind.of(each) for each in asked.plan().mini_batches()}
    assert len(found[0]) == 3
    assert set(kept) == {0.5, 1.0}


def test_micro_batches_keep_the_same_tokens(synthetic_videos: Path, tmp_path: Path) -> None:
    asked = config(synthetic_videos)
    train(asked, tmp_path / "whole")
    train(replace(asked, accumulate=2), tmp_path / "halves")
    whole, halves = (
        [row["loss"] for row in read_rows(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "halves")
    )
    assert halves == pytest.approx(whole, rel=1e-3)


def test_a_model_of_ones_own_without_tokens_is_refused(
    synthetic_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_net.py").write_text(
        "from vcycle.models.tiny import TinyResNet3d\n"
        "def build(num_classes): return TinyResNet3d(num_classes=num_classes, width=4)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    asked = replace(config(synthetic_videos), model=Model("own_net:build"))
    with pytest.raises(ValueError, match="the model cannot drop any; give null, or a model with"):
        train(asked, tmp_path / "run")


def test_a_run_keeps_the_tokens_of_each_step(
    synthetic_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever share the rehearsal left behind."""
    shares: list[tuple[float, float]] = []
    take = Gradients.step

    def noted(self: Gradients, step: Any, *others: Any) -> Any:
        shares.append((step.token_share, self.network.token_drop.share))
        return take(self, step, *others)

    monkeypatch.setattr(Gradients, "step", noted)
    train(config(synthetic_videos), tmp_path / "run")
    assert {planned for planned, _ in shares} == {0.5, 1.0}
    assert all(planned == kept for planned, kept in shares)


@pytest.mark.parametrize(
    ("refuses", "message"),
    [
        ("tokens.shape[1] < clips[0, 0].numel()", "after vcycle.TokenDrop a clip has fewer tokens"),
        ("clips.shape[2] < 4", "multigrid needs a model that takes every shape of the plan"),
    ],
)
def test_dropped_tokens_are_blamed_if_a_model_takes_all_of_them(
    refuses: str,
    message: str,
    synthetic_videos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "picky_net.py").write_text(
        "from torch import nn\n"
        "from vcycle import TokenDrop\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, num_classes):\n"
        "        super().__init__()\n"
        "        self.drop, self.head = TokenDrop(), nn.Linear(3, num_classes)\n"
        "    def forward(self, clips):\n"
        "        tokens = self.drop(clips.flatten(2).transpose(1, 2))\n"
        f"        if {refuses}: raise IndexError('no such place')\n"
        "        return self.head(tokens.mean(1))\n"
        "def build(num_classes): return Net(num_classes)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "picky_net", raising=False)
    asked = replace(config(synthetic_videos), model=Model("picky_net:build"))
    said = f"at shape 2x32x32@0.5 it fails: IndexError: no such place; {message}"
    with pytest.raises(ValueError, match=re.escape(said)):
        train(asked, tmp_path / "run")
