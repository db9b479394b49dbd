"""What processes list of their own ends in one list; what is no run is not resumed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vcycle.config.run import Data, Model, RunConfig
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape
from vcycle.train.agreement import united
from vcycle.train.run_folder import RunFolder, config_text

CONFIG = RunConfig(
    recipe="test",
    baseline=Baseline(Shape(8, 32, 32), 4, 66, 24, LearningRate(0.01), (33, 50)),
    multigrid=Multigrid(norm_group=4),
    data=Data("videos"),
    model=Model("resnet3d_tiny"),
)


def test_the_bad_videos_of_all_processes_are_one_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [{"a.mp4": "cut off", "b.mp4": "no frame"}, {"b.mp4": "no frame", "c.mp4": "empty"}]

    def gather(lists: list[Any], mine: dict[str, str]) -> None:
        assert mine in own
        lists[:] = own

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    folders = []
    for rank in (0, 1):
        folder = RunFolder(tmp_path, rank=rank)
        folder.start(CONFIG, CONFIG.plan(), first_step=0)
        assert folder.add_bad_videos(own[rank]) == own[rank]
        folders.append(folder)
    files = [tmp_path / "bad_videos.json", tmp_path / "bad_videos.1.json"]
    assert [json.loads(file.read_text()) for file in files] == own
    fabric: Any = SimpleNamespace(world_size=2)
    for folder in folders:
        of_all = united(folder.add_bad_videos(), fabric)
        assert sorted(of_all) == ["a.mp4", "b.mp4", "c.mp4"]
        folder.unite_bad_videos(of_all)
    assert json.loads(files[0].read_text()) == of_all
    assert not files[1].exists()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0", b"\xff", b"a: [", b"- a", b"3", b"{}", b"[" * 3000, b"a: !!python/object:a"),
        *(b"data: {}", b"data: 1\nmodel: {}", b"data: {}\nmodel:", b"2020-99-99"),
    ],
)
def test_a_config_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    run = RunFolder(tmp_path)
    run.checkpoint.touch()
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.yaml: no configuration of a run") as caught:
        run.check(CONFIG, resume=True)
    assert "\n" not in str(caught.value)


def test_a_run_with_other_fields_is_not_resumed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.checkpoint.touch()
    file = tmp_path / "config.yaml"
    file.write_text(config_text(CONFIG))
    run.check(CONFIG, resume=True)
    file.write_text(config_text(CONFIG) + "colour: red\n")
    with pytest.raises(ValueError, match=r": colour in its config\.yaml differs"):
        run.check(CONFIG, resume=True)
