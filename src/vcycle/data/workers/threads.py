"""Threads of the main process that decode clips into memory on any device.

Parts of batches go in, short answers come out; the pixels are in ``DecodeThreads.memory``. Threads
take the place of processes if clips are decoded on a GPU, which forked processes cannot use. Unlike
a process, a thread cannot be ended: a decode that hangs ends the run with the video's name.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import torch
from torch import Tensor

from vcycle.data.dataset import ClipDataset
from vcycle.data.request import ClipRequest
from vcycle.data.workers.lifetime import STOOD_STILL_SECONDS
from vcycle.data.workers.parts import Answer, Part, decode_part, hang_seconds


@dataclass
class _Shared:
    """What the threads work on. They hold no reference to their owner, so that it can be freed."""

    dataset: ClipDataset
    memory: Tensor
    generation: int = 0
    # Parts, each with the event after which its memory may be written; None ends a thread.
    tasks: SimpleQueue[tuple[Part, torch.cuda.Event | None] | None] = field(
        default_factory=SimpleQueue
    )
    answers: SimpleQueue[Answer] = field(default_factory=SimpleQueue)

    def is_current(self, part: Part) -> bool:
        return part.generation == self.generation


@dataclass
class _Decoding:
    """The index of the video that a thread is on, or -1, and the time it began."""

    index: int = -1
    began: float = 0.0

    def note(self, index: int) -> None:
        self.began = time.monotonic()
        self.index = index

    def hung_seconds(self, dataset: ClipDataset) -> float | None:
        """The limit that the video has exceeded, if it has."""
        if self.index < 0:
            return None
        limit = hang_seconds(dataset, self.index)
        return limit if time.monotonic() - self.began > limit else None


class DecodeThreads:
    """``num_threads`` threads that answer the parts they are offered.

    ``memory`` is (bytes,) uint8 on ``device``; on a CUDA device each thread has its own stream.
    Raises ValueError, in ``answers``, if a decode takes longer than ``hang_seconds``.
    """

    # The caller's stream and the threads' streams share memory. A part is written only after the
    # caller's stream has copied out what was there (the event of ``offer``), and is answered only
    # after it has been written, so the caller may copy it out at once. The caller copies to memory
    # of its own stream, which no thread sees: nothing here needs ``record_stream``.

    def __init__(
        self,
        dataset: ClipDataset,
        *,
        num_threads: int,
        num_bytes: int,
        device: torch.device | str,
    ) -> None:
        with torch.inference_mode(False):  # a tensor made in that mode cannot be written outside it
            self.memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self._shared = _Shared(dataset, self.memory)
        self._decoding = [_Decoding() for _ in range(num_threads)]
        self._next_number = 0
        self._looked = time.monotonic()
        self.num_parts = 0  # handed out and not answered
        threads = []
        for i, decoding in enumerate(self._decoding):
            stream = None
            if self.memory.is_cuda:
                stream = torch.cuda.Stream(self.memory.device)  # type: ignore[no-untyped-call]
            threads.append(
                threading.Thread(
                    target=_work,
                    args=(self._shared, decoding, stream),
                    name=f"vcycle-data-{i}",
                    daemon=True,
                )
            )
        # The threads end with this object, and at the latest with the interpreter.
        self._finalizer = weakref.finalize(self, _end_all, threads, self._decoding, self._shared)
        for thread in threads:
            thread.start()

    def offer(self, offset: int, requests: list[ClipRequest]) -> int:
        """Queue a part for the next free thread; its number."""
        writable = None
        if self.memory.is_cuda:
            writable = torch.cuda.Event()  # type: ignore[no-untyped-call]
            writable.record(torch.cuda.current_stream(self.memory.device))
        part = Part(self._next_number, self._shared.generation, offset, requests)
        self._next_number += 1
        self.num_parts += 1
        self._shared.tasks.put((part, writable))
        return part.number

    def answers(self, *, timeout_seconds: float) -> Iterator[Answer]:
        """What has come back, after at most ``timeout_seconds``."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            patience = max(min(deadline - time.monotonic(), 0.5), 0.0)
            try:
                answer = self._shared.answers.get(timeout=patience)
            except Empty:
                now = time.monotonic()
                if now - self._looked > STOOD_STILL_SECONDS:
                    for decoding in self._decoding:
                        decoding.began = now
                self._looked = now
                self._check_hung()
                if time.monotonic() >= deadline:
                    return
            else:
                self._looked = time.monotonic()
                self.num_parts -= 1
                yield answer
                deadline = 0.0  # take whatever else is there, without waiting

    def forget(self) -> None:
        """Take back all parts: skip what has not begun, wait for what has."""
        self._shared.generation += 1
        while self.num_parts:
            for _ in self.answers(timeout_seconds=1.0):
                pass

    def close(self) -> None:
        """End the threads, each after its clip unless that hangs; they cannot be used again."""
        self._finalizer()

    def _check_hung(self) -> None:
        for decoding in self._decoding:
            limit = decoding.hung_seconds(self._shared.dataset)
            if limit is not None:
                video = self._shared.dataset.manifest.videos[decoding.index].source
                raise ValueError(
                    f"{video}: decoding did not end within {limit:g} s, and a thread "
                    f"cannot be ended; use decoder 'pyav' or 'torchcodec', whose processes can, or "
                    f"remove the video"
                )


def _end_all(threads: list[threading.Thread], decoding: list[_Decoding], shared: _Shared) -> None:
    shared.generation += 1
    for _ in threads:
        shared.tasks.put(None)
    # Join them, so that the interpreter does not end while one is using a GPU.
    for thread, its in zip(threads, decoding, strict=True):
        while thread.is_alive() and its.hung_seconds(shared.dataset) is None:
            thread.join(timeout=0.05)


def _work(shared: _Shared, decoding: _Decoding, stream: torch.cuda.Stream | None) -> None:
    while (task := shared.tasks.get()) is not None:
        part, writable = task
        within: AbstractContextManager[None] = nullcontext()
        if stream is not None and writable is not None:
            within = _on(stream, writable)
        answer = decode_part(
            shared.dataset,
            part,
            shared.memory,
            is_current=shared.is_current,
            note=decoding.note,
            within=within,
        )
        decoding.index = -1
        shared.answers.put(answer)


@contextmanager
def _on(stream: torch.cuda.Stream, writable: torch.cuda.Event) -> Iterator[None]:
    """Work on a stream, after an event and until all of the work is done."""
    stream.wait_event(writable)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()
