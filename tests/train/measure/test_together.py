"""Steps beside busy workers, timed by a clock that the test sets."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from rich.console import Console

from vcycle.config.run import Evaluation, RunConfig
from vcycle.data.manifest import Manifest
from vcycle.evaluate.loaders import make_dataset
from vcycle.evaluate.setup import make_network
from vcycle.models.norm import SubBatchNorm3d
from vcycle.train.activity import Activity
from vcycle.train.gradients import Gradients, Pieces
from vcycle.train.measure.timing import Kind, StepTimes
from vcycle.train.measure.together import slowdown
from vcycle.train.optim import make_optimizer
from vcycle.train.run import train


@pytest.fixture
def times(config: RunConfig) -> StepTimes:
    """A step of each kind takes a second on one core, its clips nothing."""
    plan = config.plan()
    return StepTimes(
        model={Kind.of(each): 1.0 for each in plan.mini_batches()},
        decode=dict.fromkeys(plan.shapes, 0.0),
        workers=1,
        shared_cores=1,
    )


def test_a_short_run_takes_a_share_of_its_seconds_for_it(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def measured(*_: Any, limit_seconds: float, **__: Any) -> float:
        limits.append(limit_seconds)
        return 1.0

    monkeypatch.setattr("vcycle.train.measure.measuring.slowdown", measured)
    result = train(replace(config, evaluation=Evaluation(times=1)), tmp_path / "run")
    assert 0 < limits[0] < 0.1 * result["predicted_seconds"]


class Parts:
    """What a run would measure with: a network, its optimizer, and videos."""

    def __init__(self, config: RunConfig, videos: Path) -> None:
        self.config, self.console = config, Console(file=io.StringIO())
        self.videos = Manifest.read(videos).split("train")
        self.fabric = Fabric(accelerator="cpu", devices=1)
        self.network = make_network(config, num_classes=8, fabric=self.fabric)
        optimizer = make_optimizer(self.network, config.optimizer)
        self.model, _ = self.fabric.setup(self.network, optimizer)
        self.optimizer = optimizer

    def slowdown(self, times: StepTimes, *, limit_seconds: float) -> float:
        with Activity(self.console) as activity:
            pieces = Pieces(self.network, self.config, world_size=1)
            gradients = Gradients(
                self.network, self.model, self.config, pieces, fabric=self.fabric, multi_label=False
            )
            return slowdown(
                gradients,
                self.optimizer,
                make_dataset(self.config, self.videos),
                times=times,
                activity=activity,
                limit_seconds=limit_seconds,
            )


def test_it_is_the_seconds_of_steps_with_clips_over_those_predicted(
    config: RunConfig, synthetic_videos: Path, times: StepTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(config, synthetic_videos)
    before = copy.deepcopy(parts.network.state_dict())
    clock = count(0, 60)  # read at the start, after the first round and at the end
    monkeypatch.setattr(
        "vcycle.train.measure.together.time", SimpleNamespace(perf_counter=lambda: next(clock))
    )
    groups: set[Any] = set()
    forward = SubBatchNorm3d.forward

    def kept(layer: SubBatchNorm3d, clips: torch.Tensor) -> torch.Tensor:
        groups.add((tuple(clips.shape[2:]), len(clips)))
        return forward(layer, clips)

    monkeypatch.setattr(SubBatchNorm3d, "forward", kept)
    num_kinds = len(config.plan().mini_batches())
    found = parts.slowdown(times, limit_seconds=3.5 * num_kinds)
    assert found == pytest.approx(60 / (2 * num_kinds))  # three rounds, the first for the workers
    assert {size for _, size in groups} == {e.batch_size for e in config.plan().mini_batches()}
    assert "timing steps while a worker decodes" in parts.console.file.getvalue()  # type: ignore[attr-defined]
    after = parts.network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not parts.optimizer.state
    assert parts.network.training


def test_it_is_1_if_nothing_is_shared_or_it_would_take_long(
    config: RunConfig, synthetic_videos: Path, times: StepTimes
) -> None:
    parts = Parts(config, synthetic_videos)
    for other in (replace(times, workers=0), replace(times, shared_cores=0)):
        assert parts.slowdown(other, limit_seconds=1e9) == 1
    long = 2 * len(config.plan().mini_batches())
    assert parts.slowdown(times, limit_seconds=long - 0.1) == 1
    assert parts.console.file.getvalue() == ""  # type: ignore[attr-defined]


def test_videos_that_cannot_be_read_are_left_to_the_run(
    config: RunConfig, synthetic_videos: Path, times: StepTimes
) -> None:
    parts = Parts(config, synthetic_videos)
    parts.videos = replace(
        parts.videos, videos=tuple(replace(v, path="gone.mp4") for v in parts.videos.videos)
    )
    assert parts.slowdown(times, limit_seconds=1e9) == 1
