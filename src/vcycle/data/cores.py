"""How many cores this process may use, and how many workers that makes.

In: what the system grants the process. Out: numbers of at least 1. A machine of 64 cores in a
container of 8 has 8.
"""

from __future__ import annotations

import math
import os
import re
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
    """The cores of this process, divided by the processes of the run that share them.

    Those are the processes on this machine; if SLURM bound each of its tasks to cores of its own,
    the processes of a task.
    """
    cores, sharing = process_cores(), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if cores <= int(os.environ.get("SLURM_CPUS_PER_TASK", 0)):
        tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1")  # such as 8(x2), or 2,1
        sharing //= int(re.split(r"\D", tasks)[0])
    return max(1, cores // max(1, sharing))


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
