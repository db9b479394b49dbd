"""Multigrid trains a video transformer from outside, on shapes of whole patches."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcycle.config.run import Data, Evaluation, Model, Optimizer, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape, ShapeRule
from vcycle.train.run import train

pytest.importorskip("transformers")


def test_a_video_transformer_trains_on_every_shape(
    synthetic_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])  # where examples/ lies
    options = {"frames": 8, "side_pixels": 64, "width": 32, "layers": 1, "heads": 2}
    config = RunConfig(
        recipe="test",
        baseline=Baseline(Shape(8, 64, 64), 4, 60, 24, LearningRate(0.001), (24, 40)),
        # No batch norm, so no norm groups: the batch need not be a multiple of eight.
        multigrid=Multigrid(
            norm_group=None,
            rate_exponent=0.5,
            rule=ShapeRule(frame_multiple=2, side_multiple=16),
        ),
        data=Data(str(synthetic_videos), stride=1, short_side=(66, 84), num_workers=0),
        model=Model("examples.video_transformer:videomae", options),
        optimizer=Optimizer("adamw"),
        evaluation=Evaluation(times=1, batch_size=6),
        threads=1,
    )
    result = train(config, tmp_path / "run")
    assert 0 <= result["top1"] <= 1
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert {row["shape"] for row in rows} == {str(shape) for shape in config.plan().shapes}
    assert "2x32x32" in {row["shape"] for row in rows}
