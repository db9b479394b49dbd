"""How many cores this process may use, how many workers that makes, and how busy others keep them.

In: what the system grants the process. Out: numbers. A machine of 64 cores in a container of 8 has
8.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vcycle.devices.control_groups import own_groups, text_of

_STAT = Path("/proc/stat")


def process_cores() -> int:
    """Cores that this process is allowed on, or fewer if a control group has a quota."""
    return max(1, math.floor(min([allowed_cores(), *_quotas()])))


def allowed_cores() -> int:
    """Cores that this process may be put on; under a quota it keeps fewer of them busy."""
    return len(os.sched_getaffinity(0))


def default_workers() -> int:
    """The cores of this process, divided by the processes of the run that share them.

    Those are the processes on this machine; if SLURM bound each of its tasks to cores of its own,
    the processes of a task.
    """
    cores, sharing = process_cores(), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if cores <= int(os.environ.get("SLURM_CPUS_PER_TASK", 0)):
        tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1")  # such as 8(x2), or 2,1
        sharing //= int(re.split(r"\D", tasks)[0])
    return max(1, cores // max(1, sharing))


@dataclass(frozen=True)
class CoreUse:
    """What was used of this process's cores until a moment: seconds by all, seconds by itself."""

    by_all: float
    by_self: float
    at: float

    @classmethod
    def now(cls) -> CoreUse:
        """Seconds by all are 0 where the system does not say."""
        return cls(_busy_seconds(_STAT), time.process_time(), time.monotonic())

    def others_since(self, before: CoreUse) -> float:
        """Cores that others kept busy, on average since ``before``."""
        own = self.by_self - before.by_self
        return max(0.0, self.by_all - before.by_all - own) / (self.at - before.at)


def _busy_seconds(stat: Path) -> float:
    """Of the cores that this process is allowed on, since the machine started."""
    try:
        lines = stat.read_text().splitlines()
        allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        tick = os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0
    rows = [words for words in map(str.split, lines) if words[0] in allowed]
    # user, nice, system, (idle, iowait,) irq, softirq, steal
    return sum(int(row[k]) for row in rows for k in (1, 2, 3, 6, 7, 8)) / tick


def _quotas() -> Iterator[float]:
    """Cores that each control group of this process lets its processes use, if it has a limit."""
    for group, is_version_1 in own_groups("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_version_1 else ("cpu.max",)
        with suppress(ValueError):  # "max" is no number: no limit
            words = " ".join(text_of(group / name) for name in names).split()
            quota, period = (float(word) for word in words)
            if quota > 0 and period > 0:
                yield quota / period
