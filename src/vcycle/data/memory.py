"""How much memory this process may use, and how much of that nobody does.

In: what the system says of the machine and of a container. Out: bytes.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def memory_bytes() -> int:
    """The machine's memory, or less in a container."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(total, _limit(_CGROUP) or total)


def free_memory_bytes() -> int:
    """What is free or would be, if needed; 0 where the system does not say (Linux's /proc does)."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", _text(_MEMINFO), re.MULTILINE)
    free = 1024 * int(found[1]) if found else 0
    limit = _limit(_CGROUP)
    if limit is None:
        return free
    used = _text(_CGROUP / "memory.current").strip()
    cached = re.search(r"^inactive_file (\d+)$", _text(_CGROUP / "memory.stat"), re.MULTILINE)
    held = int(used or 0) - (int(cached[1]) if cached else 0)
    return max(0, min(free, limit - held))


def _limit(folder: Path) -> int | None:
    """That of a control group; None if it has none."""
    text = _text(folder / "memory.max").strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
