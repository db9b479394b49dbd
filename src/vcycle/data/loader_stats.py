"""What limits a phase: the model or the loader, and how many workers would change that.

A loader's moments go into a ``LoaderTimer``; ``LoaderStats`` come out, a value for each phase.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

from vcycle.data.tables import counted

_WAIT_SHARE = 0.05  # more waiting than this makes a phase loader-bound
SPARE_WORKERS = 1.1
"""Times those that only just keep up, which would be waited for now and then."""


def limit_of(wait_share: float) -> Literal["compute-bound", "loader-bound"]:
    """What limits a loop that waits for so much of its time."""
    return "loader-bound" if wait_share > _WAIT_SHARE else "compute-bound"


@dataclass
class LoaderStats:
    """What a loader did over some batches, in clips and wall-clock seconds."""

    num_workers: int
    num_clips: int = 0
    wait_seconds: float = 0.0  # the training loop waited for a batch
    use_seconds: float = 0.0  # the training loop was busy with one
    work_seconds: float = 0.0  # the workers decoded, summed over workers

    @property
    def clips_per_second(self) -> float:
        """Through the training loop, waiting included."""
        return self.num_clips / max(self.wait_seconds + self.use_seconds, 1e-9)

    @property
    def wait_share(self) -> float:
        """Share of the time spent waiting: 0 if batches were always ready."""
        return self.wait_seconds / max(self.wait_seconds + self.use_seconds, 1e-9)

    @property
    def workers_needed(self) -> int:
        """Workers that would decode 10% faster than the loop uses clips."""
        return max(1, math.ceil(SPARE_WORKERS * self.work_seconds / max(self.use_seconds, 1e-9)))

    def verdict(self, *, is_prepared: bool = False) -> str:
        """One line for people: the limit, and what would raise it; ``is_prepared`` are videos that
        ``vcycle data prepare`` has rewritten."""
        rate = f"{self.clips_per_second:.0f} clips/s, {self.wait_share:.0%} waiting for data"
        limit = limit_of(self.wait_share)
        if limit == "compute-bound":
            return f"{limit} ({rate})"
        line = f"{limit} ({rate}, {counted(self.num_workers, 'worker')}): "
        if self.workers_needed <= self.num_workers:
            return line + "they decode fast enough once they have started"
        line += f"{counted(self.workers_needed, 'worker')} on cores of their own would keep up"
        return line if is_prepared else line + ", or fewer after `vcycle data prepare`, as a rule"


class LoaderTimer:
    """Times one loader: waiting for a batch, then the batch in use, in turns.

    The loader calls ``start_wait`` and ``end_wait``; ``take`` may be called at any moment between.
    """

    def __init__(self, *, num_workers: int) -> None:
        self._stats = LoaderStats(num_workers=num_workers)
        self._asked = 0.0  # when the loop asked for a batch
        self._in_use_from: float | None = None  # start of the time in use that is not yet counted

    def start_wait(self) -> None:
        """The loop asks for a batch; it is done with the last one."""
        self._count_use()
        self._in_use_from = None
        self._asked = time.monotonic()

    def end_wait(self, num_clips: int) -> None:
        """The loop gets a batch of so many clips."""
        self._in_use_from = time.monotonic()
        self._stats.num_clips += num_clips
        self._stats.wait_seconds += self._in_use_from - self._asked

    def abandon(self) -> None:
        """The last batch is not in use any more, and its time does not count."""
        self._in_use_from = None

    def add_work(self, seconds: float) -> None:
        """A worker decoded for so long."""
        self._stats.work_seconds += seconds

    def take(self) -> LoaderStats:
        """The stats since this was last called, or since the start."""
        self._count_use()
        stats, self._stats = self._stats, LoaderStats(num_workers=self._stats.num_workers)
        return stats

    def _count_use(self) -> None:
        if self._in_use_from is not None:
            now = time.monotonic()
            self._stats.use_seconds += now - self._in_use_from
            self._in_use_from = now
