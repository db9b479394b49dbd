"""Run one job per video in worker processes; one that dies or hangs costs at most its job.

For work that touches every video once: probing, preparing, generating. A first death is not blamed
on the video: the system may be out of memory, or an operator ended the worker.
"""

from __future__ import annotations

import contextlib
import errno
import math
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from vcycle.data.metadata import UnreadableVideo
from vcycle.data.workers.lifetime import (
    STOOD_STILL_SECONDS,
    death,
    end,
    forking,
    start_worker,
)
from vcycle.schedule.messages import one_line

Job = TypeVar("Job")
Result = TypeVar("Result")

_MAX_DEATHS = 2  # of workers on the same job


@dataclass(frozen=True)
class Failed:
    """Why a job gave no result, in one line.

    ``passing``: the reason may be the machine's rather than the video's (a time limit, a worker
    that died, memory, input and output), so another run may succeed.
    """

    reason: str
    passing: bool = False


# The output disk is at fault, not the video.
_NO_PLACE_TO_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@contextlib.contextmanager
def one_video(place: str) -> Iterator[None]:
    """Turn any error inside into ``UnreadableVideo``.

    A full or read-only disk stays an OSError: every other video would fail with it, too.
    """
    try:
        yield
    except UnreadableVideo:
        raise
    except Exception as error:  # a hostile file may provoke any
        if isinstance(error, OSError) and error.errno in _NO_PLACE_TO_WRITE:
            raise OSError(error.errno, error.strerror, error.filename) from error
        raise UnreadableVideo(place, one_line(error)) from error


def check_num_workers(num_workers: int) -> None:
    """Raise ValueError if the number of worker processes is negative."""
    if num_workers < 0:
        raise ValueError(f"num_workers {num_workers}: give 0 or more")


def run_jobs(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    *,
    num_workers: int,
    limit_seconds: Callable[[Job], float] = lambda job: math.inf,
) -> Generator[tuple[Job, Result | Failed], None, None]:
    """Yield each job and its result as they finish.

    With 0 workers the jobs run in this process, in order and without time limits.
    ``UnreadableVideo``, a job that exceeds ``limit_seconds`` and one whose worker died give
    ``Failed``; the last is tried once more before. An OSError ends the run. Any other exception is
    a bug: raised as it is with 0 workers, as a RuntimeError with its traceback from a worker.
    """
    if num_workers == 0:
        for job in jobs:
            yield job, _attempt(function, job)
        return
    waiting = deque((job, 0) for job in jobs)  # and how many workers it has cost
    workers: list[_JobWorker[Job, Result]] = []
    looked = time.monotonic()
    try:
        while waiting or any(worker.busy for worker in workers):
            if waiting and len(workers) < num_workers:
                with forking():
                    workers.append(_JobWorker(function))
            for worker in workers:
                if waiting and not worker.busy:
                    task, deaths = waiting.popleft()
                    deadline = looked + limit_seconds(task)
                    worker.give(task, deadline=deadline, deaths=deaths)
            wait([worker.answers for worker in workers if worker.busy], timeout=0.5)
            looked, before = time.monotonic(), looked
            for worker in list(workers):
                if looked - before > STOOD_STILL_SECONDS:
                    worker.deadline += looked - before
                outcome = worker.outcome(looked)
                if worker.ended:
                    workers.remove(worker)
                if outcome is None:
                    continue
                if worker.died and worker.deaths < _MAX_DEATHS:
                    waiting.append((outcome[0], worker.deaths))
                else:
                    yield outcome
    finally:
        for worker in workers:
            worker.end()


def _attempt(function: Callable[[Job], Result], job: Job) -> Result | Failed:
    try:
        return function(job)
    except UnreadableVideo as error:
        return Failed(error.reason, passing=isinstance(error.__cause__, OSError | MemoryError))


class _JobWorker(Generic[Job, Result]):
    """A process that does one job at a time."""

    def __init__(self, function: Callable[[Job], Result]) -> None:
        work = partial(_do_jobs, function)
        self.process, self.tasks, self.answers = start_worker(work, name="vcycle-job")
        self.job: tuple[Job] | None = None
        self.deadline = 0.0
        self.deaths = 0  # of workers on the job
        self.died = self.ended = False

    @property
    def busy(self) -> bool:
        return self.job is not None

    def give(self, job: Job, *, deadline: float, deaths: int) -> None:
        self.job, self.deadline, self.deaths = (job,), deadline, deaths
        with contextlib.suppress(BrokenPipeError):  # ``outcome`` reports that it is dead
            self.tasks.send(job)

    def outcome(self, now: float) -> tuple[Job, Result | Failed] | None:
        """The job and its outcome if it has finished, failed or timed out, or the worker died."""
        if self.job is None:
            return None
        job, result = self.job[0], None
        if self.answers.poll():
            try:
                result, mistake = self.answers.recv()
            except (EOFError, OSError):
                self.end()
                self.died = True
                self.deaths += 1
                result = Failed(
                    f"it ended the process that read it ({death(self.process.exitcode)})",
                    passing=True,
                )
            else:
                if isinstance(mistake, OSError):
                    raise mistake
                if mistake:
                    raise RuntimeError(f"a worker failed:\n{mistake}")
        elif now > self.deadline:
            self.end()
            result = Failed("took longer than the time limit", passing=True)
        else:
            return None
        self.job = None
        return job, result

    def end(self) -> None:
        end(self.process)
        self.tasks.close()
        self.answers.close()
        self.ended = True


def _do_jobs(function: Callable[[Any], Any], jobs: Iterator[Any], answers: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process ends its workers itself
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(BrokenPipeError, EOFError):  # the main process is gone
        for job in jobs:
            try:
                answers.send((_attempt(function, job), None))
            except OSError as error:
                text = error.strerror or str(error)
                answers.send((None, OSError(error.errno, text, error.filename)))
            except Exception:
                answers.send((None, traceback.format_exc()))
