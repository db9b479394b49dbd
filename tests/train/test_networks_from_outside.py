"""Multigrid trains networks from outside: frame by frame, or a transformer, on whole patches."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcycle.config.run import Data, Evaluation, Model, Optimizer, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape, ShapeRule
from vcycle.train.run import train

ROOT = Path(__file__).parents[2]

SOURCE = """
import torch
from torch import nn


class FramesThenTime(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )
        self.time = nn.GRU(8, 8, batch_first=True)
        self.classifier = nn.Linear(8, num_classes)

    def forward(self, clips):
        n, c, t, h, w = clips.shape
        frames = self.frames(clips.transpose(1, 2).reshape(n * t, c, h, w))
        return self.classifier(self.time(frames.view(n, t, -1))[0].mean(1))


def frames_then_time(num_classes):
    return FramesThenTime(num_classes)
"""


@pytest.mark.parametrize(
    ("model", "rule"),
    [
        (Model("frame_networks:frames_then_time"), ShapeRule()),
        (
            Model(
                "examples.video_transformer:videomae",
                {"frames": 8, "side_pixels": 64, "width": 32, "layers": 1, "heads": 2},
            ),
            ShapeRule(frame_multiple=2, side_multiple=16),
        ),
    ],
)
def test_it_trains_on_every_shape(
    model: Model,
    rule: ShapeRule,
    synthetic_videos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "videomae" in model.name:
        pytest.importorskip("transformers")
    (tmp_path / "frame_networks.py").write_text(SOURCE)
    for folder in (ROOT, tmp_path):  # ROOT has examples/
        monkeypatch.syspath_prepend(folder)
    config = RunConfig(
        recipe="test",
        baseline=Baseline(Shape(8, 64, 64), 4, 60, 24, LearningRate(0.001), (24, 40)),
        # Without norm groups: the batch need not be a multiple of eight.
        multigrid=Multigrid(norm_group=None, rate_exponent=0.5, rule=rule),
        data=Data(str(synthetic_videos), stride=1, short_side=(66, 84), num_workers=0),
        model=model,
        optimizer=Optimizer("adamw"),
        evaluation=Evaluation(times=1, batch_size=6),
        threads=1,
    )
    result = train(config, tmp_path / "run")
    assert 0 <= result["top1"] <= 1
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert {row["shape"] for row in rows} == {str(shape) for shape in config.plan().shapes}
    assert all(shape.height % rule.side_multiple == 0 for shape in config.plan().shapes)
