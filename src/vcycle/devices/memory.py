"""How much memory this process may use, and how much of that nobody does.

In: what the system says of the machine, and of the control groups that a container or a cluster's
job puts limits on. Out: bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from vcycle.devices.control_groups import own_groups, text_of

_MEMINFO = Path("/proc/meminfo")
_FILES = {
    False: ("memory.max", "memory.current", "inactive_file"),
    True: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Of a control group of version 2, and of 1: its limit, its use, and what is cache of that."""


def memory_bytes() -> int:
    """The machine's memory, or less if a control group has a limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *(limit for limit, _ in _limits())])


def free_memory_bytes() -> int:
    """What is free or would be, if needed; 0 where the system does not say."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", text_of(_MEMINFO), re.MULTILINE)
    free = 1024 * int(found[1]) if found else 0
    return max(0, min([free, *(limit - used for limit, used in _limits())]))


def _limits() -> Iterator[tuple[int, int]]:
    """The limit of each control group that this process is in, and what is used of it."""
    for group, is_version_1 in own_groups("memory"):
        of_limit, of_use, of_cache = _FILES[is_version_1]
        limit, used = (text_of(group / file).strip() for file in (of_limit, of_use))
        stat = text_of(group / "memory.stat")
        cached = re.search(rf"^{of_cache} (\d+)$", stat, re.MULTILINE)
        if limit.isdigit() and used.isdigit():
            yield int(limit), max(0, int(used) - (int(cached[1]) if cached else 0))
