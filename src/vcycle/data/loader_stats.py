"""What limits a phase: the model or the loader, and how many workers would change that.

In: clips and seconds of a phase, as the loop and its loader counted them. Out: what a person reads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vcycle.schedule.messages import counted

_WAIT_SHARE = 0.05  # more waiting than this makes a phase loader-bound
SPARE_WORKERS = 1.1
"""Times those that only just keep up, which would be waited for now and then."""


def limit_of(wait_share: float) -> Literal["compute-bound", "loader-bound"]:
    """What limits a loop that waits for so much of its time."""
    return "loader-bound" if wait_share > _WAIT_SHARE else "compute-bound"


def workers_for(work_seconds: float, use_seconds: float) -> int:
    """Workers on cores of their own that decode a little faster than clips are taken."""
    return max(1, math.ceil(SPARE_WORKERS * work_seconds / max(use_seconds, 1e-9)))


@dataclass(frozen=True)
class LoaderStats:
    """What a run and one process's loader did over some steps, in clips and wall-clock seconds.

    ``decodes_fast``: without ``vcycle data prepare``, which has rewritten the videos or would save
    nothing.
    """

    num_workers: int  # of this process
    num_clips: int  # of all processes
    wait_seconds: float  # the training loop waited for a batch
    use_seconds: float  # the training loop was busy with one
    work_seconds: float  # the workers decoded, summed over workers
    decodes_fast: bool = False
    left_share: float = 0.0  # of this process's clips, left to PyAV by another decoder

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
        return workers_for(self.work_seconds, self.use_seconds)

    def verdict(self) -> str:
        """One line for people: the limit, and what would raise it."""
        rate = f"{self.clips_per_second:.0f} clips/s, {self.wait_share:.0%} waiting for data"
        limit = limit_of(self.wait_share)
        if limit == "compute-bound":
            return f"{limit} ({rate})"
        line = f"{limit} ({rate}, {counted(self.num_workers, 'worker')}): "
        if self.workers_needed <= self.num_workers:
            return line + "they decode fast enough once they have started"
        line += f"{counted(self.workers_needed, 'worker')} on cores of their own would keep up"
        if not self.decodes_fast:
            line += ", or fewer after `vcycle data prepare`, as a rule"
        if self.left_share:
            line += f"; --data.decoder cannot decode {self.left_share:.1%} of the clips, PyAV did"
        return line
