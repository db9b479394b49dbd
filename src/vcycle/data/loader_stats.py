"""What limits a phase: the model or the loader, and how many workers would change that."""

from __future__ import annotations

import math
from dataclasses import dataclass

_WAIT_SHARE = 0.05  # more waiting than this makes a phase loader-bound


@dataclass
class LoaderStats:
    """What a loader did over some batches, in clips and seconds of wall-clock time."""

    num_workers: int
    num_clips: int = 0
    num_batches: int = 0
    wait_seconds: float = 0.0  # the training loop waited for a batch
    use_seconds: float = 0.0  # the training loop was busy with one
    work_seconds: float = 0.0  # the workers decoded, all of them together

    def count(self, num_clips: int, *, waited: float) -> None:
        """A batch was handed over."""
        self.num_clips += num_clips
        self.num_batches += 1
        self.wait_seconds += waited

    def count_use(self, seconds: float) -> None:
        """The loop came back for another batch."""
        self.use_seconds += seconds

    def count_work(self, seconds: float) -> None:
        """A worker finished something."""
        self.work_seconds += seconds

    @property
    def clips_per_second(self) -> float:
        """Through the loop, waiting included."""
        return self.num_clips / max(self.wait_seconds + self.use_seconds, 1e-9)

    @property
    def wait_share(self) -> float:
        """Of the time: 0 when batches were always ready."""
        return self.wait_seconds / max(self.wait_seconds + self.use_seconds, 1e-9)

    @property
    def loader_bound(self) -> bool:
        """Whether the loop waited for more than a twentieth of the time."""
        return self.wait_share > _WAIT_SHARE

    @property
    def workers_needed(self) -> int:
        """Workers that would decode as fast as the loop uses clips, with a tenth to spare."""
        return max(1, math.ceil(1.1 * self.work_seconds / max(self.use_seconds, 1e-9)))

    @property
    def verdict(self) -> str:
        """One line for people."""
        rate = f"{self.clips_per_second:.0f} clips/s, {self.wait_share:.0%} waiting for data"
        if not self.loader_bound:
            return f"compute-bound ({rate})"
        if self.workers_needed <= self.num_workers:
            return (
                f"loader-bound ({rate}, {_workers(self.num_workers)}): they decode fast enough "
                f"once they have started"
            )
        return (
            f"loader-bound ({rate}, {_workers(self.num_workers)}): "
            f"{_workers(self.workers_needed)} on cores of their own would keep up, or videos that "
            f"`vcycle data prepare` has rewritten"
        )


def _workers(number: int) -> str:
    return f"{number} worker" if number == 1 else f"{number} workers"
