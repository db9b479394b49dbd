"""The loaders of a run: when decoded frames are kept, and that they change no clip."""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor

from tests.conftest import small_run
from vcycle.config.run import Data, RunConfig
from vcycle.data import dataset as dataset_module
from vcycle.data.decode.kept import KeptFrames, decoded_bytes
from vcycle.data.loader import Loader
from vcycle.data.manifest import Manifest
from vcycle.data.request import ClipRequest
from vcycle.data.workers.processes import WorkerPool
from vcycle.evaluate import loaders
from vcycle.evaluate.loaders import kept_frames, make_dataset, make_eval_loader, make_train_loader
from vcycle.train.run import train

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


def frames_of(data: Data, videos: Manifest, *, num_clips: int = 10**6) -> KeptFrames | None:
    return kept_frames(data, videos, num_clips=num_clips)


def data(videos: Manifest, *, times: float, **fields: Any) -> Data:
    """That may keep the frames of all videos so many times."""
    return Data(frames_gib=times * decoded_bytes(videos.videos) / GIB, num_workers=0, **fields)


def test_frames_are_kept_if_those_of_all_videos_fit(videos: Manifest) -> None:
    assert frames_of(data(videos, times=0), videos) is None
    assert frames_of(data(videos, times=0.9), videos) is None
    kept = frames_of(data(videos, times=1.1), videos)
    assert kept is not None
    assert kept.max_bytes == pytest.approx(1.1 * decoded_bytes(videos.videos), abs=1)


def test_processes_share_the_memory(videos: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    three = replace(data(videos, times=3.1), num_workers=3)
    kept = frames_of(three, videos)
    assert kept is not None
    assert kept.max_bytes == pytest.approx(3.1 / 3 * decoded_bytes(videos.videos), abs=1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert frames_of(three, videos) is None


def test_videos_that_are_read_once_are_not_kept(videos: Manifest) -> None:
    """Each of two processes decodes all of a video at its first clip."""
    two = replace(data(videos, times=9), num_workers=2)
    assert frames_of(two, videos, num_clips=4 * len(videos) - 1) is None
    assert frames_of(two, videos, num_clips=4 * len(videos)) is not None


@pytest.mark.parametrize(("share", "fits"), [(3.9, False), (4.1, True)])
def test_no_more_than_a_quarter_of_what_is_free(
    videos: Manifest, monkeypatch: pytest.MonkeyPatch, share: float, fits: bool
) -> None:
    free = int(share * decoded_bytes(videos.videos))
    monkeypatch.setattr(loaders, "free_memory_bytes", lambda: free)
    assert (frames_of(data(videos, times=9), videos) is not None) == fits


def test_other_decoders_keep_nothing(videos: Manifest) -> None:
    assert frames_of(data(videos, times=9, decoder="torchcodec"), videos) is None


def test_views_are_not_kept(config: RunConfig, videos: Manifest) -> None:
    with closing(make_eval_loader(config, videos, Fabric(accelerator="cpu", devices=1))) as views:
        assert views.dataset.kept is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_kept_frames_give_the_same_batches(
    config: RunConfig, videos: Manifest, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    fabric = Fabric(accelerator="cpu", devices=1)
    config = replace(config, data=replace(config.data, num_workers=num_workers))

    def batches(kept: KeptFrames | None) -> list[Tensor]:
        with closing(make_train_loader(config, config.plan(), videos, fabric, kept=kept)) as loader:
            return [batch.clips.clone() for batch in loader]

    read = batches(None)
    # Workers are forks of this process.
    monkeypatch.setattr(dataset_module, "read_clip", Mock(side_effect=AssertionError))
    kept = batches(KeptFrames(GIB))
    assert len(kept) == len(config.plan())
    assert all(torch.equal(one, other) for one, other in zip(kept, read, strict=True))


def test_threads_do_not_share_frames(config: RunConfig, videos: Manifest) -> None:
    dataset = make_dataset(config, videos, kept=KeptFrames(GIB))
    with pytest.raises(ValueError, match="kept frames: give threads=False"):
        Loader(dataset, [], num_workers=2, largest_batch_bytes=1, threads=True)


def test_a_worker_that_was_killed_reads_files(config: RunConfig, videos: Manifest) -> None:
    """It may have been for the memory of its frames."""
    requests = [[ClipRequest(k % 3, config.baseline.shape, seed=k)] for k in range(12)]
    of_files = make_dataset(config, videos)
    loader = Loader(
        replace(of_files, kept=KeptFrames(GIB)),
        requests,
        num_workers=1,
        largest_batch_bytes=3 * config.baseline.shape.num_pixels,
        prefetch_bytes=1,
    )
    with closing(loader):
        batches = iter(loader)
        found = [next(batches).clips.clone()]
        assert isinstance(loader._pool, WorkerPool)
        killed = loader._pool._workers[0].process
        killed.kill()
        found += [batch.clips.clone() for batch in batches]
        assert loader._pool._workers[0].process.pid != killed.pid
    for batch, (request,) in zip(found, requests, strict=True):
        assert torch.equal(batch[0].permute(1, 2, 3, 0), of_files[request].pixels)


def test_a_run_says_what_it_keeps(config: RunConfig, tmp_path: Path) -> None:
    for frames_gib in (4.0, 0.0):
        given = replace(config, data=replace(config.data, frames_gib=frames_gib))
        console = Console(file=io.StringIO(), width=200)
        train(given, tmp_path / "run", dry_run=True, console=console)
        said = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("Decoded frames are kept by the process that decodes" in said) == (frames_gib > 0)
