"""Threads that decode do what worker processes do: the same batches, stats and errors."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from tests.processes import PATIENCE
from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange
from vcycle.data.loaders import eval_loader
from vcycle.data.sampler import view_requests
from vcycle.data.workers import threads
from vcycle.data.workers.threads import DecodeThreads
from vcycle.demo.videos import write_videos
from vcycle.schedule.shape import Shape

RANGE = GridRange(Shape(4, 32, 32), 2, (37, 49))


@dataclass(frozen=True)
class Treacherous(ClipDataset):
    """Some of its videos do something to the thread that decodes them."""

    hangers: tuple[int, ...] = ()
    raisers: tuple[int, ...] = ()
    release: threading.Event = field(default_factory=threading.Event)  # of those that hang

    def read(self, request, *, note=lambda index: None, **options):
        def trap(index):
            note(index)
            if index in self.hangers:
                self.release.wait(60)
            if index in self.raisers:
                raise KeyError("a mistake in the program")

        return super().read(request, note=trap, **options)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    path = tmp_path_factory.mktemp("videos")
    return write_videos(path, train_videos=16, val_videos=1, num_workers=1).split("train")


@pytest.fixture
def loader_of():
    """Makes loaders whose threads are ended after the test."""
    loaders = []

    def make(dataset, **options):
        options = {"batch_size": 4, "num_workers": 2, "max_bad_share": 0.5} | options
        loaders.append(eval_loader(dataset, RANGE.base, **({"threads": True} | options)))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


def decode_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("vcycle-data")]


def assert_same(batches, others):
    for a, b in zip(batches, others, strict=True):
        assert torch.equal(a.clips, b.clips)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.indices, b.indices)
        assert a.bad == b.bad


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_the_batches_are_those_of_processes(manifest, tmp_path, loader_of, num_workers):
    """Bit for bit and in the same order, with bad videos replaced by the same others."""
    (tmp_path / "bad.mp4").write_text("no video")
    videos = list(manifest.videos)
    for i in (3, 9):
        videos[i] = dataclasses.replace(videos[i], path=f"file://{tmp_path}/bad.mp4?{i}")
    dataset = ClipDataset(dataclasses.replace(manifest, videos=tuple(videos)), RANGE)
    processes = loader_of(dataset, threads=False, num_clips=2)
    threads = loader_of(dataset, num_workers=num_workers, num_clips=2)
    assert_same(processes, threads)
    assert len(decode_threads()) == num_workers
    assert threads.bad_videos == processes.bad_videos
    assert len(threads.bad_videos) == 2
    assert threads.take_work_seconds() > 0


def test_a_decode_that_hangs_ends_the_run_and_names_the_video(manifest, loader_of):
    dataset = Treacherous(manifest, RANGE, limit_seconds=0.5, hangers=(5,))
    message = r"train/00005\.mp4: decoding did not end within 0\.75 s.*use decoder 'pyav'"
    with pytest.raises(ValueError, match=message):
        list(loader_of(dataset))
    (thread,) = decode_threads()  # nothing waited for it
    dataset.release.set()
    thread.join()


def test_a_run_that_was_stopped_blames_no_thread(manifest, loader_of, monkeypatch):
    """A look comes late, and what is under way seems to have taken as long."""
    monkeypatch.setattr(threads, "STOOD_STILL_SECONDS", 0.0)
    dataset = Treacherous(manifest, RANGE, limit_seconds=0.3, hangers=(5,))
    timer = threading.Timer(2.0, dataset.release.set)
    timer.start()
    assert len(list(loader_of(dataset))) == 4
    timer.join()


def test_a_mistake_in_the_program_is_raised_with_its_place(manifest, loader_of):
    loader = loader_of(Treacherous(manifest, RANGE, raisers=(7,)))
    with pytest.raises(RuntimeError, match=r"(?s)data worker failed.*in trap.*a mistake in the"):
        list(loader)
    assert not decode_threads()


def test_a_dataset_without_a_readable_video_ends_the_run_with_the_list(manifest, loader_of):
    videos = [dataclasses.replace(video, path=f"gone/{video.path}") for video in manifest.videos]
    gone = dataclasses.replace(manifest, videos=tuple(videos))
    with pytest.raises(TooManyBadVideos, match=r"(?s)no readable .* gone/train/.*not found"):
        list(loader_of(ClipDataset(gone, RANGE)))


def test_an_abandoned_iteration_leaves_the_next_one_complete(manifest, loader_of):
    loader = loader_of(ClipDataset(manifest, RANGE))
    whole = list(loader)
    for stop in (1, 2):
        for k, batch in enumerate(loader):
            assert torch.equal(batch.clips, whole[k].clips)
            if k == stop:
                break
    assert_same(loader, whole)
    loader.close()
    assert not decode_threads()
    assert_same(loader, whole)


def test_inference_mode_may_begin_and_end_between_iterations(manifest, loader_of):
    loader = loader_of(ClipDataset(manifest, RANGE))
    with torch.inference_mode():
        whole = list(loader)
    assert_same(loader, whole)


def test_threads_end_with_their_loader(manifest):
    loader = eval_loader(
        ClipDataset(manifest, RANGE),
        RANGE.base,
        batch_size=4,
        num_workers=2,
        threads=True,
    )
    next(iter(loader))
    assert len(decode_threads()) == 2
    del loader
    gc.collect()
    assert not decode_threads()


@dataclass(frozen=True)
class Noting(ClipDataset):
    """Notes when a clip is read."""

    log: list[str] = field(default_factory=list)

    def read(self, request, **options):
        self.log.append("read")
        return super().read(request, **options)


def test_on_a_gpu_writing_waits_for_reading_and_answering_for_writing(manifest, monkeypatch):
    """CUDA's calls are replaced by notes of them."""
    dataset = Noting(manifest, RANGE)
    log = dataset.log

    class Event:
        def record(self, stream):
            log.append(f"record on {stream}")

    class Stream:
        def __init__(self, device):
            log.append(f"stream of {device}")

        def wait_event(self, event):
            log.append("wait")

        def synchronize(self):
            log.append("synchronize")

    @contextmanager
    def on(stream):
        log.append("begin")
        yield
        log.append("end")

    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True), raising=False)
    for name, fake in {
        "Event": Event,
        "Stream": Stream,
        "stream": on,
        "current_stream": lambda device: f"the caller's of {device}",
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    requests = view_requests(2, RANGE.base)
    num_bytes = sum(request.num_bytes for request in requests)
    threads = DecodeThreads(dataset, num_threads=1, num_bytes=num_bytes, device="cpu")
    assert threads.offer(0, requests) == 0
    (answer,) = threads.answers(timeout_seconds=20)
    log.append("answer")
    threads.close()
    assert answer.error == ""
    assert log == [
        "stream of cpu",
        "record on the caller's of cpu",
        *("wait", "begin", "read", "read", "end", "synchronize", "answer"),
    ]


UNCLOSED = """
import sys
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange
from vcycle.data.loaders import eval_loader
from vcycle.data.manifest import Manifest
from vcycle.schedule.shape import Shape

dataset = ClipDataset(Manifest.read(sys.argv[1]), GridRange(Shape(8, 64, 64), 2, (73, 97)))
loader = eval_loader(
    dataset, Shape(8, 64, 64), batch_size=2, num_workers=2, threads=True
)
next(iter(loader))
"""


def test_the_interpreter_ends_with_threads_at_work(manifest):
    command = [sys.executable, "-c", UNCLOSED, str(manifest.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
