"""How many cores this process may use, and how many workers that makes.

In: what the system grants the process. Out: numbers of at least 1. A machine of 64 cores in a
container of 8 has 8.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def process_cores() -> int:
    """Cores that this process is allowed on, or fewer if its control group has a quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, math.floor(min(cores, _quota(_CGROUPS))))


def default_workers() -> int:
    """The cores of this process, divided by the processes that torchrun started on the machine."""
    return max(1, process_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def _quota(folder: Path) -> float:
    """Cores that a control group, version 2 or 1, lets its processes use; infinite if it does."""
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            words = " ".join((folder / name).read_text() for name in names).split()
            quota, period = (float(word) for word in words)  # "max" is no number: no limit
        except (OSError, ValueError):
            continue
        if quota > 0 and period > 0:
            return quota / period
    return math.inf
