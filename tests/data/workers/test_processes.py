"""Workers that die, hang, fail or are interrupted: the run goes on and says which video it was."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.processes import PATIENCE, have_ended
from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange
from vcycle.data.loader import Loader
from vcycle.data.loaders import eval_loader
from vcycle.data.metadata import TookTooLong
from vcycle.data.sampler import view_requests
from vcycle.data.workers.lifetime import forking
from vcycle.demo.videos import write_videos
from vcycle.schedule.shape import Shape

pytestmark = pytest.mark.xdist_group("processes")
RANGE = GridRange(Shape(4, 32, 32), 2, (37, 49))


@dataclass(frozen=True)
class Treacherous(ClipDataset):
    """Some of its videos do something to the process that decodes them."""

    killers: tuple[int, ...] = ()
    once: Path | None = None  # while this file is there, video 3 removes it and kills
    hangers: tuple[int, ...] = ()
    raisers: tuple[int, ...] = ()
    slow: Mapping[int, float] = field(default_factory=dict)  # and for how many seconds

    def read(self, request, *, out=None, bad_indices=None, note=lambda index: None):
        def trap(index):
            note(index)
            if self.once is not None and index == 3 and self.once.exists():
                self.once.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if index in self.killers:
                os.kill(os.getpid(), signal.SIGKILL)
            if index in self.hangers:
                time.sleep(600)
            time.sleep(self.slow.get(index, 0.0))
            if index in self.raisers:
                raise KeyError("a mistake in the program")

        return super().read(request, out=out, bad_indices=bad_indices or {}, note=trap)


@dataclass(frozen=True)
class Deadly(ClipDataset):
    """Ends every process that reads it, whichever video is asked for."""

    def read(self, request, **options):
        os._exit(3)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    path = tmp_path_factory.mktemp("videos")
    return write_videos(path, train_videos=16, val_videos=1, num_workers=1).split("train")


def loader_of(dataset, **options):
    options = {"batch_size": 4, "num_workers": 2, "max_bad_share": 0.5} | options
    return eval_loader(dataset, RANGE.base, **options)


def test_a_video_that_kills_its_worker_is_named_and_the_run_goes_on(manifest):
    loader = loader_of(Treacherous(manifest, RANGE, killers=(3, 9)))
    batches = list(loader)
    assert [len(batch) for batch in batches] == [4] * 4
    assert sorted(loader.bad_videos) == ["train/00003.mp4", "train/00009.mp4"]
    assert "workers that decoded it died (signal SIGKILL)" in loader.bad_videos["train/00003.mp4"]
    good = {i for batch in batches for i in batch.indices.tolist()}
    assert good == {-1, *range(16)} - {3, 9}
    again = list(loader)
    assert all(torch.equal(a.clips, b.clips) for a, b in zip(batches, again, strict=True))


def test_a_video_that_is_decoded_after_its_worker_died_is_not_blamed(manifest, tmp_path):
    """However often: the system ran out of memory, or an operator ended the worker."""
    loader = loader_of(Treacherous(manifest, RANGE, once=tmp_path / "once"))
    whole = list(loader)
    for _ in range(3):
        (tmp_path / "once").touch()
        again = list(loader)
        assert not (tmp_path / "once").exists()
        assert all(torch.equal(a.clips, b.clips) for a, b in zip(whole, again, strict=True))
    assert not loader.bad_videos


def test_a_decode_that_hangs_is_ended(manifest):
    loader = loader_of(Treacherous(manifest, RANGE, limit_seconds=2.0, hangers=(5,)))
    assert len(list(loader)) == 4
    assert loader.bad_videos == {"train/00005.mp4": "decoding did not end within 3 s"}


@dataclass(frozen=True)
class Suspended(ClipDataset):
    """The first decode of a video takes as long as a process that somebody has stopped."""

    seconds: float = 0.0
    stopped: Path = Path()

    def _decode(self, video, grid, out):
        if self.stopped.exists():
            self.stopped.unlink()
            time.sleep(self.seconds)
            raise TookTooLong(video.path)
        return super()._decode(video, grid, out)


@pytest.mark.parametrize(("num_workers", "seconds"), [(0, 0.0), (1, 0.0), (1, 60.0)])
def test_a_video_is_not_bad_for_the_time_that_a_run_was_stopped(
    manifest, tmp_path, num_workers, seconds
):
    """Neither by the limit between packets nor by the one inside the library."""
    whole = list(loader_of(ClipDataset(manifest, RANGE)))
    (tmp_path / "stopped").touch()
    dataset = Suspended(
        manifest, RANGE, limit_seconds=1.0, seconds=seconds, stopped=tmp_path / "stopped"
    )
    loader = loader_of(dataset, num_workers=num_workers)
    found = list(loader)
    assert not (tmp_path / "stopped").exists()
    assert not loader.bad_videos
    assert all(torch.equal(a.clips, b.clips) for a, b in zip(whole, found, strict=True))


def test_the_time_in_which_nobody_looked_is_none_of_a_decode(manifest, monkeypatch):
    """The machine, or the processes together, may have been stopped for it."""
    monkeypatch.setattr("vcycle.data.workers.processes.STOOD_STILL_SECONDS", 1.0)
    dataset = Treacherous(manifest, RANGE, limit_seconds=1.0, slow={8: 2.5})
    loader = loader_of(dataset, num_workers=1)
    batches = iter(loader)
    next(batches)
    deadline = time.monotonic() + PATIENCE
    while 8 not in loader._pool._on_video:  # those before it may take a while
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(2.0)
    assert len(list(batches)) == 3
    assert not loader.bad_videos


def test_a_worker_that_cannot_be_killed_ends_the_run(manifest, monkeypatch):
    """As one that waits for a disk: what it writes later must not be taken for another clip."""
    monkeypatch.setattr("vcycle.data.workers.lifetime._ENDS_WITHIN_SECONDS", 0.1)
    loader = loader_of(Treacherous(manifest, RANGE, limit_seconds=0.5, hangers=(0,)), num_workers=1)
    alive = set()
    with monkeypatch.context() as patch:
        patch.setattr("multiprocessing.process.BaseProcess.kill", lambda each: alive.add(each.pid))
        with pytest.raises(ValueError, match=r"^data workers: vcycle-data-0 was killed and does"):
            list(loader)
    assert alive.isdisjoint(each.pid for each in multiprocessing.active_children())
    for pid in alive:  # the interpreter would not have waited for it
        os.kill(pid, signal.SIGKILL)


def test_a_script_that_leaves_a_loader_open_ends(manifest, tmp_path):
    """Whatever it finalizes later than its workers: they ignore the signal that would end them."""
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import tempfile
folder = tempfile.TemporaryDirectory()
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange
from vcycle.data.loaders import eval_loader
from vcycle.data.manifest import Manifest
from vcycle.schedule.shape import Shape
shape = Shape(4, 32, 32)
videos = Manifest.read({str(manifest.root)!r})
dataset = ClipDataset(videos, GridRange(shape, 2, (37, 49)))
loader = eval_loader(dataset, shape, batch_size=2, num_workers=1)
print(len(next(iter(loader))))
"""
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout == "2\n"


def test_videos_that_all_hang_end_the_run_with_the_last(manifest):
    """Each is repeated in a new worker, whose messages must not outgrow a pipe that it reads."""
    shape = Shape(8, 112, 112)
    many = dataclasses.replace(manifest, videos=manifest.videos * 40)
    videos = tuple(range(len(many.videos)))
    dataset = Treacherous(many, GridRange(shape, 2, (128, 170)), limit_seconds=0.1, hangers=videos)
    loader = eval_loader(dataset, shape, batch_size=8, num_workers=2, max_bad_share=0.5)
    message = (
        r"^.*train/\d{5}.mp4: decoding did not end within 0.15 s, the last of 23 in a row; "
        r"check the disk or the store$"
    )
    with pytest.raises(ValueError, match=message):
        list(loader)


def test_a_dataset_without_a_readable_video_ends_the_run_with_the_list(manifest):
    videos = [dataclasses.replace(video, path=f"gone/{video.path}") for video in manifest.videos]
    gone = dataclasses.replace(manifest, videos=tuple(videos))
    for num_workers in (0, 1):
        with pytest.raises(TooManyBadVideos, match=r"(?s)no readable .* gone/train/.*not found"):
            list(loader_of(ClipDataset(gone, RANGE), num_workers=num_workers))


def test_one_bad_video_never_stops_a_run(manifest):
    loader = loader_of(Treacherous(manifest, RANGE, killers=(3,)), max_bad_share=0.01)
    assert len(list(loader)) == 4
    with pytest.raises(TooManyBadVideos, match="2 of 16 videos"):
        list(loader_of(Treacherous(manifest, RANGE, killers=(3, 9)), max_bad_share=0.01))


def test_a_mistake_in_the_program_is_raised_with_its_place(manifest):
    with pytest.raises(RuntimeError, match=r"(?s)data worker failed.*a mistake in the program"):
        list(loader_of(Treacherous(manifest, RANGE, raisers=(7,))))


def test_workers_that_die_of_no_video_end_the_run(manifest):
    with pytest.raises(ValueError, match=r"as fast as they start \(exit code 3\); check"):
        list(loader_of(Deadly(manifest, RANGE), num_workers=1))


def test_an_abandoned_iteration_leaves_the_next_one_complete(manifest):
    loader = loader_of(ClipDataset(manifest, RANGE))
    whole = [batch.indices.tolist() for batch in loader]
    for stop in (1, 2):
        for k, batch in enumerate(loader):
            assert batch.indices.tolist() == whole[k]
            if k == stop:
                break
    assert [batch.indices.tolist() for batch in loader] == whole
    loader.close()
    assert [batch.indices.tolist() for batch in loader] == whole


@pytest.mark.parametrize("threads", [False, True])
def test_working_ahead_is_bounded_in_bytes(manifest, threads):
    """With room for three batches the workers stop, however long the loop takes."""
    dataset = ClipDataset(manifest, RANGE)
    requests = view_requests(16, RANGE.base) * 8
    lists = [requests[i : i + 4] for i in range(0, len(requests), 4)]
    size = 4 * requests[0].num_bytes
    options = {"largest_batch_bytes": size, "prefetch_bytes": 1, "threads": threads}
    loader = Loader(dataset, lists, num_workers=1, **options)
    next(iter(loader))
    pool = loader._pool
    numbers = []
    while pool.num_parts:
        numbers += [answer.number for answer in pool.answers(timeout_seconds=10)]
    # Of the first three batches and the next, two parts each; all may have come already.
    assert max(numbers, default=0) < 8
    assert pool.memory.numel() == 3 * size
    loader.close()


@pytest.mark.parametrize("threads", [False, True])
def test_many_shapes_share_the_ring_of_memory(manifest, threads):
    """Batches of very different sizes, in a ring that holds three of the largest."""
    dataset = ClipDataset(manifest, RANGE)
    lists = []
    for k in range(40):
        side = (8, 32, 16, 24, 12)[k % 5]
        requests = view_requests(16, Shape(1 + k % 4, side, side))
        lists.append(requests[: 1 + (7 * k) % 16])
    largest = max(sum(r.num_bytes for r in requests) for requests in lists)
    arguments = {"largest_batch_bytes": largest, "prefetch_bytes": 1, "max_bad_share": 0.1}
    alone = list(Loader(dataset, lists, num_workers=0, **arguments))
    together = list(Loader(dataset, lists, num_workers=2, threads=threads, **arguments))
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a.clips, b.clips)
        assert torch.equal(a.indices, b.indices)


def test_a_killed_parent_leaves_no_worker(manifest):
    """Not even SIGKILL of the main process does, nor a worker whose decode hangs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        loader = loader_of(Treacherous(manifest, RANGE, hangers=(5,)))
        next(iter(loader))
        while 5 not in loader._pool._on_video:
            time.sleep(0.01)
        workers = [worker.process.pid for worker in loader._pool._workers]
        os.write(write, " ".join(map(str, workers)).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    pids = [int(pid) for pid in os.read(read, 100).split()]
    assert len(pids) == 2
    assert have_ended(pids)


def test_ctrl_c_while_a_worker_is_forked_is_not_lost(manifest, monkeypatch):
    """Python drops what is raised in functions that a fork calls, as those of ``logging`` are."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # none, if in the background
    try:
        monkeypatch.setattr(sys.modules[__name__], "at_fork", lambda: signal.raise_signal(2))
        interrupted = iter(loader_of(ClipDataset(manifest, RANGE)))
        with pytest.raises(KeyboardInterrupt):
            next(interrupted)
        monkeypatch.undo()
        del interrupted
        gc.collect()
        assert not multiprocessing.active_children()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def at_fork():
    """What a test does before a fork: nothing but in the one above."""


os.register_at_fork(before=lambda: at_fork())


def test_workers_outlive_the_thread_that_started_them(manifest):
    """Linux tells a process of the end of its parent's thread."""
    loader = loader_of(ClipDataset(manifest, RANGE))
    batches = iter(loader)
    thread = threading.Thread(target=next, args=(batches,))
    thread.start()
    thread.join()
    workers = [worker.process for worker in loader._pool._workers]
    assert len(list(batches)) == 3
    assert [worker.process for worker in loader._pool._workers] == workers


def test_a_fork_of_the_process_leaves_its_workers_alone(manifest):
    loader = loader_of(ClipDataset(manifest, RANGE))
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        loader.close()  # as its interpreter does at the end
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert all(worker.process.is_alive() for worker in loader._pool._workers)
    assert len(list(batches)) == 3
    assert not loader.bad_videos


def test_the_loader_counts_its_work(manifest):
    loader = loader_of(ClipDataset(manifest, RANGE))
    began = time.monotonic()
    assert len(list(loader)) > 0
    assert 0 < loader.take_work_seconds() < loader.num_workers * (time.monotonic() - began)
    assert loader.take_work_seconds() == 0


def test_a_worker_leaves_the_garbage_of_its_parent_alone() -> None:
    """Such as a decoder, whose threads a forked process does not have, and would wait for."""

    class Decoder:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if os.getpid() != parent:
                os._exit(3)

    parent, frozen = os.getpid(), gc.get_freeze_count()  # Python 3.12 begins with some
    gc.disable()
    try:
        left = weakref.ref(Decoder())
        child = multiprocessing.get_context("fork").Process(target=gc.collect)
        with forking():
            child.start()
        child.join()
    finally:
        gc.enable()
    assert child.exitcode == 0
    assert gc.get_freeze_count() <= frozen
    gc.collect()
    assert left() is None
