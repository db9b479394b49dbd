"""Copies to a device, without one: a stand-in for torch.cuda, and late copies out of the ring."""

from __future__ import annotations

import gc
from collections import deque
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from vcycle.data import loader as loader_module
from vcycle.data.dataset import ClipDataset
from vcycle.data.device_copy import DeviceCopy
from vcycle.data.grid import GridRange
from vcycle.data.loaders import eval_loader
from vcycle.demo.videos import write_videos
from vcycle.schedule.shape import Shape

RANGE = GridRange(Shape(4, 32, 32), 2, (37, 49))
CPU = torch.device("cpu")


@pytest.fixture
def calls(monkeypatch):
    """What is asked of the CUDA runtime, in order."""
    found = []

    class Stream:
        def __init__(self, device=None):
            self.name = "own" if device is not None else "caller's"

        def wait_event(self, event):
            found.append(f"{self.name} stream waits for the copy")

        def synchronize(self):
            found.append("synchronize")

    class Event:
        def record(self, stream):
            found.append(f"record in {stream.name} stream")

    @contextmanager
    def stream(each):
        found.append(f"enter {each.name} stream")
        yield
        found.append("leave")

    def register(pointer, num_bytes, flags):
        found.append(f"lock {num_bytes}")
        return register.answer

    register.answer = 0
    runtime = SimpleNamespace(
        cudaHostRegister=register, cudaHostUnregister=lambda pointer: found.append("unlock")
    )
    for name, value in {
        "Stream": Stream,
        "Event": Event,
        "stream": stream,
        "current_stream": lambda device: Stream(),
        "cudart": lambda: runtime,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda _, each: found.append(f"keep for {each.name} stream")
    )
    return SimpleNamespace(found=found, register=register)


def test_memory_is_locked_once_and_copied_in_a_stream_of_its_own(calls):
    memory = torch.arange(12, dtype=torch.uint8)
    copies = DeviceCopy(memory, CPU)
    for start in (0, 4):
        copy, _ = copies.copy(memory[start : start + 4])
        assert copy.tolist() == list(range(start, start + 4))
        assert copy.data_ptr() != memory[start:].data_ptr()
    one = [
        "enter own stream",
        "record in own stream",
        "leave",
        "caller's stream waits for the copy",
        "keep for caller's stream",
    ]
    assert calls.found == ["lock 12", *one, *one]
    copies.close()
    copies.close()
    assert calls.found[-2:] == ["synchronize", "unlock"]
    assert calls.found.count("unlock") == 1


def test_memory_is_unlocked_with_its_last_holder(calls):
    copies = DeviceCopy(torch.zeros(8, dtype=torch.uint8), CPU)
    del copies
    gc.collect()
    assert calls.found == ["lock 8", "synchronize", "unlock"]


def test_memory_that_cannot_be_locked_is_copied_all_the_same(calls):
    calls.register.answer = 304
    memory = torch.arange(4, dtype=torch.uint8)
    copies = DeviceCopy(memory, CPU)
    assert copies.copy(memory)[0].tolist() == [0, 1, 2, 3]
    copies.close()
    assert "unlock" not in calls.found


class LateCopy:
    """A DeviceCopy whose copies are over only if they are waited for."""

    made: list[LateCopy]

    def __init__(self, memory, device):
        self.is_closed = False
        self.on_the_way = deque()
        self.most = 0
        self.made.append(self)

    def copy(self, source):
        self.on_the_way.append(Late(source, self.on_the_way))
        self.most = max(self.most, len(self.on_the_way))
        return source.clone(), self.on_the_way[-1]

    def wait(self):
        while self.on_the_way:
            self.on_the_way[0].synchronize()

    def close(self):
        self.wait()
        self.is_closed = True


class Late:
    def __init__(self, source, on_the_way):
        self.source, self.before, self.on_the_way = source, source.clone(), on_the_way

    def query(self):
        return self not in self.on_the_way

    def synchronize(self):
        assert torch.equal(self.source, self.before), "its place was written before it was copied"
        self.on_the_way.remove(self)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    path = tmp_path_factory.mktemp("videos")
    return write_videos(path, train_videos=16, val_videos=1, num_workers=1).split("train")


class FullDevice(LateCopy):
    """Has no memory for every third batch."""

    def copy(self, source):
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked % 3 == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().copy(source)


def test_an_iteration_goes_on_after_a_batch_that_the_device_did_not_hold(manifest, monkeypatch):
    """It is left on the host, from where the caller copies it once there is room."""
    monkeypatch.setattr(FullDevice, "made", [], raising=False)
    monkeypatch.setattr(loader_module, "DeviceCopy", FullDevice)
    options = {"batch_size": 2, "num_workers": 1, "prefetch_bytes": 1}  # room for three batches
    plain = list(eval_loader(ClipDataset(manifest, RANGE), RANGE.base, **options))
    loader = eval_loader(ClipDataset(manifest, RANGE), RANGE.base, device="cuda", **options)
    monkeypatch.setattr(torch, "empty", without_pinning(torch.empty))
    for _ in range(2):
        batches = list(loader)
        assert len(batches) == 8
        for ours, theirs in zip(batches, plain, strict=True):
            assert torch.equal(ours.clips, theirs.clips)
            assert torch.equal(ours.indices, theirs.indices)
    loader.close()


def without_pinning(empty):
    return lambda *size, pin_memory=False, **options: empty(*size, **options)


def test_a_place_is_written_again_only_after_its_copy(manifest, monkeypatch):
    monkeypatch.setattr(LateCopy, "made", [], raising=False)
    monkeypatch.setattr(loader_module, "DeviceCopy", LateCopy)
    options = {"batch_size": 2, "num_workers": 1, "prefetch_bytes": 1}  # room for three batches
    plain = [
        batch.clips for batch in eval_loader(ClipDataset(manifest, RANGE), RANGE.base, **options)
    ]
    copying = eval_loader(ClipDataset(manifest, RANGE), RANGE.base, device="cuda", **options)
    for _ in range(2):  # an iteration that is left half way leaves copies behind
        next(iter(copying))
    clips = [batch.clips for batch in copying]
    assert len(clips) == 8
    assert all(torch.equal(a, b) for a, b in zip(clips, plain, strict=True))
    (late,) = LateCopy.made
    assert late.most > 1
    copying.close()
    assert late.is_closed
    assert not late.on_the_way
