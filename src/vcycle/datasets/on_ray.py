"""Run one job per video on the nodes of a Ray cluster; a node that dies ends nothing.

Jobs go in, their results come out as those of ``parallel.run_jobs`` do. Each job is a Ray task of
one CPU, whose worker runs it in a process of its own: a video that hangs or kills that process
fails as it does on one machine, and Ray repeats a task only if its node or worker dies.
"""

from __future__ import annotations

import errno
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from vcycle.datasets.parallel import Failed, run_jobs
from vcycle.schedule.messages import one_line

Job = TypeVar("Job")
Result = TypeVar("Result")

_REPEATS = 3  # of a task whose node or worker died
_IDLE_SECONDS = 60.0  # without a CPU in the cluster, before that is said
_QUEUED = 2  # tasks for each CPU of the cluster: enough that none waits for this process


def run_anywhere(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    *,
    num_workers: int,
    ray: str | None,
    limit_seconds: Callable[[Job], float],
) -> Generator[tuple[Job, Result | Failed], None, None]:
    """Yield each job and its result: from the cluster at the address ``ray``, or from processes."""
    if ray is None:
        return run_jobs(function, jobs, num_workers=num_workers, limit_seconds=limit_seconds)
    return run_jobs_on_ray(function, jobs, address=ray, limit_seconds=limit_seconds)


def run_jobs_on_ray(
    function: Callable[[Job], Result],
    jobs: Iterable[Job],
    *,
    address: str,
    limit_seconds: Callable[[Job], float],
) -> Generator[tuple[Job, Result | Failed], None, None]:
    """Yield each job and its result as they finish, as ``run_jobs`` does.

    ``address`` is that of the cluster's head, or ``auto`` on one of its nodes. A job whose workers
    die four times in a row gives ``Failed``. Raises ValueError if Ray is not installed or no
    cluster answers.
    """
    ray = _ray(address)

    def attempt(job: Job) -> Result | Failed:
        ((_, outcome),) = run_jobs(function, [job], num_workers=1, limit_seconds=limit_seconds)
        return outcome

    with _connected(ray, address):
        task = ray.remote(num_cpus=1, max_retries=_REPEATS)(attempt)
        waiting = iter(jobs)
        running: dict[Any, Job] = {}
        idle_since = time.monotonic()
        while True:
            cpus = int(ray.cluster_resources().get("CPU", 0))
            if cpus:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > _IDLE_SECONDS:
                print(f"--ray {address}: no node with a CPU is left; waiting", file=sys.stderr)
                idle_since = time.monotonic()
            room = _QUEUED * max(1, cpus) - len(running)
            for _, job in zip(range(room), waiting, strict=False):
                running[task.remote(job)] = job
            if not running:
                return
            done, _ = ray.wait(list(running), timeout=5.0)
            for reference in done:
                yield running.pop(reference), _outcome(ray, reference)


def check_shared(folder: Path) -> None:
    """Raise OSError, with the machine's name, unless this machine has the folder."""
    if not folder.is_dir():
        reason = f"no such folder on {socket.gethostname()}; give one that all nodes share"
        raise OSError(errno.ENOENT, reason, str(folder))


def _outcome(ray: Any, reference: Any) -> Any:
    """The result of a task that has ended. Raises what ``run_jobs`` raised in it."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except (
        ray.exceptions.WorkerCrashedError,
        ray.exceptions.NodeDiedError,
        ray.exceptions.OutOfMemoryError,
    ):
        return Failed(f"{1 + _REPEATS} workers or nodes died while they read it", passing=True)


def _ray(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError(
            f"--ray {address}: Ray is not installed; run `pip install 'vcycle[ray]'` here and on "
            f"every node"
        ) from None
    return ray


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Connect to the cluster, unless this process is already."""
    if ray.is_initialized():
        yield
        return
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"--ray {address}: no cluster answers there ({one_line(error)}); give the address that "
            f"`ray start --head` prints, or auto on one of its nodes"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError or ValueError unless something listens there: Ray itself tries for minutes."""
    if address != "auto":
        host, _, port = address.removeprefix("ray://").rpartition(":")
        socket.create_connection((host, int(port)), timeout=10).close()
