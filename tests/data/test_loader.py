"""Batches: what is in them, the same with any number of workers, and what ends a run."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.data.plans import FakePlan, FakeStep
from tests.processes import PATIENCE, group_of, have_ended, kill_group
from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange
from vcycle.data.loaders import eval_loader, train_loader
from vcycle.data.sampler import PlanSampler
from vcycle.demo.videos import write_videos
from vcycle.schedule.shape import Shape

RANGE = GridRange(Shape(8, 64, 64), 2, (73, 97))


PLAN = FakePlan(
    [
        FakeStep(Shape(4, 32, 32), 16, 0),
        FakeStep(Shape(4, 45, 45), 8, 16),
        FakeStep(Shape(8, 64, 64), 4, 24),
    ]
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_videos(
        tmp_path_factory.mktemp("videos"), train_videos=12, val_videos=5, num_workers=1
    )


@pytest.fixture(scope="module")
def train(manifest):
    return ClipDataset(manifest.split("train"), RANGE)


def test_one_loader_serves_every_shape_with_any_number_of_workers(train):
    sampler = PlanSampler(PLAN, len(train), seed=0)
    alone = list(train_loader(train, sampler, num_workers=0))
    assert [(len(b), b.shape) for b in alone] == [(s.batch_size, s.shape) for s in PLAN]
    loader = train_loader(train, sampler, num_workers=2)
    assert len(loader) == 3
    for a, b in zip(alone, loader, strict=True):
        assert torch.equal(a.clips, b.clips)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.indices, b.indices)
        expected = [train.manifest.videos[i].labels[0] for i in b.indices]
        assert b.labels.tolist() == expected


def test_two_ranks_see_what_one_sees(train):
    whole = next(iter(train_loader(train, PlanSampler(PLAN, 12, 0), num_workers=0)))
    halves = [
        next(
            iter(train_loader(train, PlanSampler(PLAN, 12, 0, rank=r, world_size=2), num_workers=0))
        )
        for r in range(2)
    ]
    assert torch.equal(whole.clips, torch.cat([half.clips for half in halves]))


def test_evaluation_sees_every_view_and_repeats_exactly(manifest):
    dataset = ClipDataset(manifest.split("val"), RANGE)
    loader = eval_loader(dataset, RANGE.base, batch_size=4, num_clips=2, num_crops=3, num_workers=0)
    first, second = list(loader), list(loader)
    assert [len(batch) for batch in first] == [4] * 7 + [2]
    assert torch.cat([b.indices for b in first]).tolist() == np.repeat(range(5), 6).tolist()
    assert all(torch.equal(a.clips, b.clips) for a, b in zip(first, second, strict=True))
    with pytest.raises(ValueError, match="batch_size 0: give at least 1"):
        eval_loader(dataset, RANGE.base, batch_size=0, num_workers=0)


@pytest.mark.parametrize("options", [{}, {"threads": True}])
def test_an_iteration_is_over_when_another_begins(train, options):
    """It fails and the other goes on; so does closing end it."""
    loader = eval_loader(train, RANGE.base, batch_size=4, num_workers=1, **options)
    old, new = iter(loader), iter(loader)
    batches = [next(old), next(new)]
    assert torch.equal(batches[0].clips, batches[1].clips)
    with pytest.raises(RuntimeError, match="iteration of the loader is over: another has begun"):
        next(old)
    assert len(list(new)) == 2
    closed = iter(loader)
    next(closed)
    loader.close()
    with pytest.raises(RuntimeError, match="or it was closed"):
        next(closed)


def with_bad(dataset, tmp_path, count):
    videos = list(dataset.manifest.videos)
    for i in range(count):
        (tmp_path / f"bad{i}.mp4").write_text("no video")
        videos[i] = dataclasses.replace(videos[i], path=f"file://{tmp_path}/bad{i}.mp4")
    return ClipDataset(dataclasses.replace(dataset.manifest, videos=tuple(videos)), RANGE)


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (
            [{"offset": 512 * i, "num_bytes": 512} for i in range(3)],
            ["gone[0:512]", "gone[1024:1536]", "gone[512:1024]"],
        ),
        (
            [{"start_seconds": i / 4, "end_seconds": i / 4 + 0.5} for i in range(3)],
            ["gone[0 s:0.5 s]", "gone[0.25 s:0.75 s]", "gone[0.5 s:1 s]"],
        ),
    ],
)
def test_lines_of_one_file_count_one_by_one(train, parts, names):
    lines = [
        dataclasses.replace(video, path="gone", **part)
        for video, part in zip(train.manifest.videos, parts, strict=False)
    ]
    videos = (*lines, *train.manifest.videos[3:])
    bad = ClipDataset(dataclasses.replace(train.manifest, videos=videos), RANGE)
    sampler = PlanSampler(PLAN, 12, seed=0)
    loader = train_loader(bad, sampler, num_workers=0, max_bad_share=0.3)
    list(loader)
    assert sorted(loader.bad_videos) == names
    with pytest.raises(TooManyBadVideos, match="of 12 videos"):
        list(train_loader(bad, sampler, num_workers=0))


def test_bad_videos_are_listed_and_too_many_stop_the_run(train, tmp_path):
    bad = with_bad(train, tmp_path, 2)
    sampler = PlanSampler(PLAN, 12, seed=0)
    loader = train_loader(bad, sampler, num_workers=0, max_bad_share=0.2)
    assert sum(len(batch) for batch in loader) == 28
    assert len(loader.bad_videos) == 2
    assert all("Invalid data" in reason for reason in loader.bad_videos.values())
    loader = train_loader(bad, sampler, num_workers=0)
    with pytest.raises(TooManyBadVideos, match=r"of 12 videos .* the accepted 1\.0%"):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_clips_that_a_decoder_leaves_to_pyav_are_counted(train, monkeypatch, num_workers):
    """Every other video here; the pixels are PyAV's."""
    files = sorted(train.manifest.locate(video).uri for video in train.manifest.videos)
    cannot = set(files[::2])
    monkeypatch.setattr("vcycle.data.loader.check_decoder", lambda decoder, device: None)
    monkeypatch.setattr(
        "vcycle.data.decode.torchcodec._decode", lambda place, *_, **__: place.uri not in cannot
    )
    sampler = PlanSampler(PLAN, len(train), seed=0)
    dataset = dataclasses.replace(train, decoder="torchcodec")
    indices = [i for parts in sampler for i in (part.index for part in parts)]
    videos = [train.manifest.locate(train.manifest.videos[i]).uri for i in indices]
    loader = train_loader(dataset, sampler, num_workers=num_workers)
    assert len(list(loader)) == 3
    left = sum(path in cannot for path in videos)
    assert 0 < left < len(videos)
    assert loader.take_left_share() == left / len(videos)
    assert loader.take_left_share() == 0
    by_pyav = train_loader(train, sampler, num_workers=num_workers)
    assert len(list(by_pyav)) == 3
    assert by_pyav.take_left_share() == 0


def test_a_sampler_of_another_number_of_videos_is_refused(train):
    for num_videos in (11, 13):
        with pytest.raises(
            ValueError, match=f"num_videos {num_videos} of the sampler: the dataset has 12; give"
        ):
            train_loader(train, PlanSampler(PLAN, num_videos, seed=0), num_workers=0)


INTERRUPTED = """
import signal
import sys
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange
from vcycle.data.loaders import eval_loader
from vcycle.data.manifest import Manifest
from vcycle.schedule.shape import Shape

# A test runner in the background ignores SIGINT, and so would what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
dataset = ClipDataset(Manifest.read(sys.argv[1]), GridRange(Shape(8, 64, 64), 2, (73, 97)))
loader = eval_loader(dataset, Shape(8, 64, 64), batch_size=2, num_workers=2)
try:
    while True:
        for batch in loader:
            print("batch", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_leaves_no_worker_behind(manifest):
    """The signal goes to the whole process group, as a terminal sends it."""
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(manifest.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline() == "batch\n"
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert err == ""
        assert out.endswith("interrupted\n")
        assert process.returncode == 0
        assert have_ended(group_of(process.pid))
    finally:
        kill_group(process.pid)
