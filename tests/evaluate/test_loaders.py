"""The loaders of a run: when decoded frames are kept, and that they change no clip."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor

from tests.conftest import small_run
from vcycle.config.run import Data, RunConfig
from vcycle.data.decode.kept import decoded_bytes
from vcycle.data.manifest import Manifest
from vcycle.evaluate import loaders
from vcycle.evaluate.loaders import kept_frames, make_eval_loader, make_train_loader

GIB = 2**30


@pytest.fixture
def config(synthetic_videos: Path) -> RunConfig:
    return small_run(synthetic_videos)


@pytest.fixture
def videos(synthetic_videos: Path) -> Manifest:
    return Manifest.read(synthetic_videos).split("train")


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One training process, and 40 GiB that nobody uses."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(loaders, "free_memory_bytes", lambda: 40 * GIB)


def data(videos: Manifest, *, times: float, **fields: Any) -> Data:
    """That may keep the frames of all videos so many times."""
    return Data(kept_gib=times * decoded_bytes(videos.videos) / GIB, num_workers=0, **fields)


def test_frames_are_kept_if_those_of_all_videos_fit(videos: Manifest) -> None:
    assert kept_frames(data(videos, times=0), videos) is None
    assert kept_frames(data(videos, times=0.9), videos) is None
    kept = kept_frames(data(videos, times=1.1), videos)
    assert kept is not None
    assert kept.max_bytes == pytest.approx(1.1 * decoded_bytes(videos.videos), abs=1)


def test_processes_share_the_memory(videos: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    three = replace(data(videos, times=3.1), num_workers=3)
    kept = kept_frames(three, videos)
    assert kept is not None
    assert kept.max_bytes == pytest.approx(3.1 / 3 * decoded_bytes(videos.videos), abs=1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert kept_frames(three, videos) is None


@pytest.mark.parametrize(("share", "fits"), [(3.9, False), (4.1, True)])
def test_no_more_than_a_quarter_of_what_is_free(
    videos: Manifest, monkeypatch: pytest.MonkeyPatch, share: float, fits: bool
) -> None:
    free = int(share * decoded_bytes(videos.videos))
    monkeypatch.setattr(loaders, "free_memory_bytes", lambda: free)
    assert (kept_frames(data(videos, times=9), videos) is not None) == fits


def test_other_decoders_keep_nothing(videos: Manifest) -> None:
    assert kept_frames(data(videos, times=9, decoder="torchcodec"), videos) is None


def test_views_are_read_once_and_not_kept(config: RunConfig, videos: Manifest) -> None:
    with closing(make_eval_loader(config, videos, Fabric(accelerator="cpu", devices=1))) as views:
        assert views.dataset.kept is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_kept_frames_give_the_same_batches(
    config: RunConfig, videos: Manifest, num_workers: int
) -> None:
    def batches(kept_gib: float) -> list[Tensor]:
        given = replace(config.data, kept_gib=kept_gib, num_workers=num_workers)
        fabric = Fabric(accelerator="cpu", devices=1)
        run = replace(config, data=given)
        with closing(make_train_loader(run, run.plan(), videos, fabric)) as loader:
            assert (loader.dataset.kept is not None) == (kept_gib > 0)
            return [batch.clips.clone() for batch in loader]

    kept, read = batches(4.0), batches(0.0)
    assert len(kept) == len(config.plan())
    assert all(torch.equal(one, other) for one, other in zip(kept, read, strict=True))
