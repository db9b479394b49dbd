"""The loaders of a run: when decoded frames are kept, and that they change no clip."""

from __future__ import annotations

import multiprocessing
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
from vcycle.data.decode.kept import KeptFrames, decoded_bytes
from vcycle.data.loader import Loader
from vcycle.data.manifest import Manifest
from vcycle.data.request import ClipRequest
from vcycle.evaluate import loaders
from vcycle.evaluate.loaders import kept_frames, make_dataset, make_eval_loader, make_train_loader

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
    return Data(frames_gib=times * decoded_bytes(videos.videos) / GIB, num_workers=0, **fields)


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


def test_views_are_not_kept(config: RunConfig, videos: Manifest) -> None:
    with closing(make_eval_loader(config, videos, Fabric(accelerator="cpu", devices=1))) as views:
        assert views.dataset.kept is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_kept_frames_give_the_same_batches(
    config: RunConfig, videos: Manifest, num_workers: int
) -> None:
    def batches(frames_gib: float) -> list[Tensor]:
        given = replace(config.data, frames_gib=frames_gib, num_workers=num_workers)
        fabric = Fabric(accelerator="cpu", devices=1)
        run, kept = replace(config, data=given), kept_frames(given, videos)
        assert (kept is not None) == (frames_gib > 0)
        with closing(make_train_loader(run, run.plan(), videos, fabric, kept=kept)) as loader:
            found = [batch.clips.clone() for batch in loader]
        assert kept is None or (kept.num_bytes > 0) == (num_workers == 0)  # or workers have them
        return found

    kept, read = batches(4.0), batches(0.0)
    assert len(kept) == len(config.plan())
    assert all(torch.equal(one, other) for one, other in zip(kept, read, strict=True))


def test_threads_do_not_share_frames(config: RunConfig, videos: Manifest) -> None:
    dataset = make_dataset(config, videos, kept=KeptFrames(GIB))
    with pytest.raises(ValueError, match="kept frames: give threads=False"):
        Loader(dataset, [], num_workers=2, largest_batch_bytes=1, threads=True)


def test_a_worker_that_is_killed_keeps_frames_anew(config: RunConfig, videos: Manifest) -> None:
    dataset = make_dataset(config, videos, kept=KeptFrames(GIB))
    requests = [[ClipRequest(k % 3, config.baseline.shape, seed=k)] for k in range(12)]
    expected = [dataset[request].pixels for (request,) in requests]
    loader = Loader(
        make_dataset(config, videos, kept=KeptFrames(GIB)),
        requests,
        num_workers=1,
        largest_batch_bytes=3 * config.baseline.shape.num_pixels,
        prefetch_bytes=1,
    )
    with closing(loader):
        batches = iter(loader)
        found = [next(batches).clips.clone()]
        (worker,) = multiprocessing.active_children()
        worker.kill()
        found += [batch.clips.clone() for batch in batches]
    for batch, clip in zip(found, expected, strict=True):
        assert torch.equal(batch[0].permute(1, 2, 3, 0), clip)
