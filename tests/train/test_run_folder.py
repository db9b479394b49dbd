"""What processes list of their own ends in one list."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.plan import Multigrid
from vcycle.schedule.shape import Shape
from vcycle.train.config import Data, Model, RunConfig
from vcycle.train.run_folder import RunFolder


def test_the_bad_videos_of_all_processes_are_one_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(
        recipe="test",
        baseline=Baseline(Shape(8, 32, 32), 4, 66, 24, LearningRate(0.01), (33, 50)),
        multigrid=Multigrid(norm_group=4),
        data=Data("videos"),
        model=Model("resnet3d_tiny"),
    )
    own = [{"a.mp4": "cut off", "b.mp4": "no frame"}, {"b.mp4": "no frame", "c.mp4": "empty"}]

    def gather(lists: list[Any], mine: dict[str, str]) -> None:
        assert mine in own
        lists[:] = own

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    runs = []
    for rank in (0, 1):
        fabric: Any = SimpleNamespace(
            world_size=2, global_rank=rank, is_global_zero=rank == 0, broadcast=lambda value: value
        )
        run = RunFolder(tmp_path, fabric=fabric)
        run.start(config, config.plan(), first_step=0)
        run.bad_videos = (own[rank],)
        run.flush()
        runs.append(run)
    files = [tmp_path / "bad_videos.json", tmp_path / "bad_videos.1.json"]
    assert [json.loads(file.read_text()) for file in files] == own
    runs[0].add_validation({"step": 3, "top1": 0.5})
    (tmp_path / "metrics.jsonl").write_text("")
    results = [run.finish(config.plan()) for run in runs]
    assert results[0]["bad_videos"] == 3
    assert sorted(json.loads(files[0].read_text())) == ["a.mp4", "b.mp4", "c.mp4"]
    assert not files[1].exists()
