"""How much memory this process may use, and how much of that nobody does.

In: what the system says of the machine, and of the control groups that a container or a cluster's
job puts limits on. Out: bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_FILES = {
    "": (_GROUPS, "memory.max", "memory.current", "inactive_file"),
    "memory": (
        _GROUPS / "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}
"""Of version 2 of control groups, whose controllers have no name, and 1: limit, use, its cache."""


def memory_bytes() -> int:
    """The machine's memory, or less if a control group has a limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([total, *(limit for limit, _ in _limits())])


def free_memory_bytes() -> int:
    """What is free or would be, if needed; 0 where the system does not say (Linux's /proc does)."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", _text(_MEMINFO), re.MULTILINE)
    free = 1024 * int(found[1]) if found else 0
    return max(0, min([free, *(limit - used for limit, used in _limits())]))


def _limits() -> Iterator[tuple[int, int]]:
    """The limit of each control group that this process is in, and what is used of it."""
    own = dict.fromkeys(_FILES, "/")  # the outermost is there in any container
    for line in _text(_OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        own |= {name: path for name in controllers.split(",") if name in own}
    for name, path in own.items():
        root, of_limit, of_use, of_cache = _FILES[name]
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root):
                limit, used = (_text(group / file).strip() for file in (of_limit, of_use))
                cached = re.search(
                    rf"^{of_cache} (\d+)$", _text(group / "memory.stat"), re.MULTILINE
                )
                if limit.isdigit() and used.isdigit():
                    yield int(limit), max(0, int(used) - (int(cached[1]) if cached else 0))


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
