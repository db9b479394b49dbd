"""Multigrid trains networks as people write them: frame by frame, with a recurrent layer on top."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from vcycle.config.run import Data, Evaluation, Model, Optimizer, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape
from vcycle.train.run import train

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


def test_a_network_of_frames_trains_on_every_shape(
    synthetic_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "frame_networks.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = RunConfig(
        recipe="test",
        baseline=Baseline(Shape(8, 64, 64), 4, 60, 24, LearningRate(0.001), (24, 40)),
        multigrid=Multigrid(norm_group=None, rate_exponent=0.5),
        data=Data(str(synthetic_videos), stride=1, short_side=(66, 84), num_workers=0),
        model=Model("frame_networks:frames_then_time"),
        optimizer=Optimizer("adamw"),
        evaluation=Evaluation(times=1, batch_size=6),
        threads=1,
    )
    result = train(config, tmp_path / "run")
    assert 0 <= result["top1"] <= 1
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert {row["shape"] for row in rows} == {str(shape) for shape in config.plan().shapes}
    weights = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["model"]
    assert weights["frames.0.weight"].shape == (8, 3, 3, 3)
