"""Worker processes that decode clips into memory shared with the main process.

Parts of batches go to each worker over a pipe of its own, and short answers come back; the pixels
never travel. Each worker notes which video it is on, so that a video that hangs or kills it is
known by name: the worker is replaced, the video counts as bad, and the work is done again. A first
death is not blamed on the video: the system may be out of memory, or an operator ended the worker.
"""

from __future__ import annotations

import contextlib
import mmap
import pickle
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch import Tensor

from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.resample import keep_freed_memory
from vcycle.data.request import ClipRequest
from vcycle.data.workers.lifetime import (
    ASKING_TO_END,
    STOOD_STILL_SECONDS,
    death,
    end,
    forking,
    process_context,
    start_worker,
)
from vcycle.data.workers.parts import Answer, Part, decode_part, hang_seconds

_QUEUED_BYTES = 32 * 1024  # of messages to one worker: below what a pipe holds, so no send blocks
_MAX_RESTARTS_IN_A_ROW = 20  # beside one of each worker: a disk that stalls hangs them all
_MAX_DEATHS = 2  # of workers, or hangs, on a video that has not been decoded in between


@dataclass
class _Worker:
    process: Any
    tasks: Connection
    answers: Connection
    num_known: int  # of the bad videos, in the order in which they were found
    parts: dict[int, tuple[Part, int]] = field(default_factory=dict)  # and their messages' bytes

    @property
    def queued_bytes(self) -> int:
        return sum(size for _, size in self.parts.values())

    def message(self, part: Part, bad_indices: dict[int, str]) -> bytes:
        """A part, and the bad videos that this worker does not know of."""
        news = dict(islice(bad_indices.items(), self.num_known, None))
        return pickle.dumps((part, news), protocol=5)

    def send(self, part: Part, message: bytes, *, num_known: int) -> None:
        self.parts[part.number] = (part, len(message))
        self.num_known = num_known
        with contextlib.suppress(OSError):  # it died, and ``answers`` will replace it
            self.tasks.send_bytes(message)


class WorkerPool:
    """``num_workers`` processes with one torch thread each.

    ``memory`` is (bytes,) uint8, shared. A decode that hangs inside the codec library, for longer
    than ``hang_seconds``, is ended with its worker. Raises ValueError, in ``answers``, if workers
    die as fast as they start, all videos hang, or one that is killed does not end.
    """

    def __init__(self, dataset: ClipDataset, *, num_workers: int, num_bytes: int) -> None:
        self.dataset = dataset
        self.bad_indices: dict[int, str] = {}
        self._deaths: Counter[int] = Counter()  # of workers, by the video that they were on
        context = process_context()
        with torch.inference_mode(False):  # a tensor made in that mode cannot be written outside it
            # Anonymous: not limited by the size of /dev/shm, 64 MB in many containers.
            self.memory = torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8)
        self._generation = context.RawValue("q", 0)
        # For each worker: the index of the video that it is on, or -1, and the time it began.
        self._on_video = context.RawArray("q", [-1] * num_workers)
        self._began = context.RawArray("d", num_workers)
        self._looked = time.monotonic()
        self._next_number = 0
        self._restarts_in_a_row = 0
        with forking():
            self._workers = [self._start(i, dataset) for i in range(num_workers)]
            # The processes end with this object, and at the latest with the interpreter: before
            # multiprocessing waits for them, as a finalizer of ``weakref`` may not.
            self._finalizer = Finalize(self, _end_all, args=(self._workers,), exitpriority=10)

    @property
    def num_parts(self) -> int:
        """Parts handed out and not answered."""
        return sum(len(worker.parts) for worker in self._workers)

    def offer(self, offset: int, requests: list[ClipRequest]) -> int | None:
        """Hand a part to the least busy worker; its number, or None if all have enough to do."""
        worker = min(self._workers, key=lambda worker: (worker.queued_bytes, len(worker.parts)))
        part = Part(self._next_number, self._generation.value, offset, requests)
        message = worker.message(part, self.bad_indices)
        if worker.parts and worker.queued_bytes + len(message) > _QUEUED_BYTES:
            return None
        worker.send(part, message, num_known=len(self.bad_indices))
        self._next_number += 1
        return part.number

    def answers(self, *, timeout_seconds: float) -> Iterator[Answer]:
        """What has come back, after at most ``timeout_seconds``; replaces dead and hung workers."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            patience = max(min(deadline - time.monotonic(), 0.5), 0.0)
            ready = wait([worker.answers for worker in self._workers], timeout=patience)
            for i, worker in enumerate(self._workers):
                if worker.answers in ready:
                    answer = self._receive(i)
                    if answer is not None:
                        yield answer
            self._end_hung_workers()
            if ready or time.monotonic() >= deadline:
                return

    def forget(self) -> None:
        """Take back all parts: skip what has not begun, wait for what has."""
        self._generation.value += 1
        while self.num_parts:
            for _ in self.answers(timeout_seconds=1.0):
                pass

    def close(self) -> None:
        """End the processes; the pool cannot be used again."""
        self._finalizer()

    def _receive(self, i: int) -> Answer | None:
        worker = self._workers[i]
        try:
            answer: Answer = worker.answers.recv()
        except (EOFError, OSError):
            self._replace(i, "")
            return None
        del worker.parts[answer.number]
        for clip in answer.clips:
            self._deaths.pop(clip.index, None)
        self._restarts_in_a_row = 0
        return answer

    def _end_hung_workers(self) -> None:
        now = time.monotonic()
        stood_still = now - self._looked > STOOD_STILL_SECONDS
        self._looked = now
        for i in range(len(self._workers)):
            if (index := self._on_video[i]) < 0:
                continue
            if stood_still:
                self._began[i] = now
            limit = hang_seconds(self.dataset, index)
            if now - self._began[i] > limit:
                self._replace(i, f"decoding did not end within {limit:g} s")

    def _replace(self, i: int, reason: str) -> None:
        """Replace a dead or hung worker and repeat its parts.

        The video that it was on is bad if it is the second time there: the system may have killed
        the first for its memory, or stopped all of them for longer than a decode may take. There is
        a ``reason`` if it hung.
        """
        old = self._workers[i]
        index = self._on_video[i]
        if not end(old.process):  # it may yet write into the memory of its parts
            raise ValueError(
                f"data workers: {old.process.name} was killed and does not end, as what it reads "
                f"from does not answer; check the disk or the store"
            )
        if index >= 0:
            self._deaths[index] += 1
            if self._deaths[index] == _MAX_DEATHS:
                died = f"the workers that decoded it died ({death(old.process.exitcode)})"
                self.bad_indices[index] = reason = reason or died
        self._restarts_in_a_row += 1
        if self._restarts_in_a_row > _MAX_RESTARTS_IN_A_ROW + len(self._workers):
            if index >= 0 and reason:
                raise ValueError(
                    f"{self.dataset.manifest.videos[index].source}: {reason}, the "
                    f"last of {self._restarts_in_a_row} in a row; check the disk or the store"
                )
            raise ValueError(
                f"data workers: die as fast as they start ({death(old.process.exitcode)}); check "
                f"the machine's memory limit, use fewer workers, or --data.frames_gib 0"
            )
        self._on_video[i] = -1
        # It may have been killed for the memory of the frames that it kept.
        with forking():
            self._workers[i] = self._start(i, replace(self.dataset, kept=None))
        for part, _ in old.parts.values():
            message = self._workers[i].message(part, self.bad_indices)
            self._workers[i].send(part, message, num_known=len(self.bad_indices))

    def _start(self, i: int, dataset: ClipDataset) -> _Worker:
        work = partial(
            _work,
            dataset=dataset,
            memory=self.memory,
            generation=self._generation,
            bad_indices=dict(self.bad_indices),
            on_video=self._on_video,
            began=self._began,
            number=i,
        )
        started = start_worker(work, name=f"vcycle-data-{i}")
        return _Worker(*started, num_known=len(self.bad_indices))


def _end_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()  # they hold nothing that needs cleaning up
    for worker in workers:
        end(worker.process)
        worker.tasks.close()
        worker.answers.close()


def _work(
    tasks: Iterator[tuple[Part, dict[int, str]]],
    answers: Connection,
    *,
    dataset: ClipDataset,
    memory: Tensor,
    generation: Any,
    bad_indices: dict[int, str],
    on_video: Any,
    began: Any,
    number: int,
) -> None:
    for signal_number in ASKING_TO_END:  # the run first ends its step, and then its workers
        signal.signal(signal_number, signal.SIG_IGN)
    torch.set_num_threads(1)
    keep_freed_memory()

    def note(index: int) -> None:
        began[number] = time.monotonic()
        on_video[number] = index

    for part, news in tasks:
        bad_indices |= news
        answer = decode_part(
            dataset,
            part,
            memory,
            is_current=lambda part: part.generation == generation.value,
            note=note,
            bad_indices=bad_indices,
        )
        on_video[number] = -1
        answers.send(answer)
