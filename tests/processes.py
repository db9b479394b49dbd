"""Processes that a test started, and that those started: whether they still run, and their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PATIENCE = 400
"""Seconds after which a process that a test started is taken to hang."""


def have_ended(pids: Iterable[int]) -> bool:
    """Whether all of them end in time; one that nobody has waited for yet has ended too."""
    pids = list(pids)
    deadline = time.monotonic() + PATIENCE
    while any(map(_is_running, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def group_of(leader: int) -> list[int]:
    """The processes of a process group."""
    stats = {int(file.parent.name): _stat(file) for file in Path("/proc").glob("[0-9]*/stat")}
    return [pid for pid, stat in stats.items() if stat and stat[2] == str(leader)]


def children_of(parent: int) -> list[int]:
    """The processes that a process has started."""
    stats = {int(file.parent.name): _stat(file) for file in Path("/proc").glob("[0-9]*/stat")}
    return [pid for pid, stat in stats.items() if stat and stat[1] == str(parent)]


def kill_group(leader: int) -> None:
    """End a process group and what it started, such as torchrun's ranks, which lead their own."""
    pids = set(group_of(leader))
    while started := {child for pid in pids for child in children_of(pid)} - pids:
        pids |= started
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_running(pid: int) -> bool:
    stat = _stat(Path(f"/proc/{pid}/stat"))
    return bool(stat) and stat[0] != "Z"


def _stat(file: Path) -> list[str]:
    """What follows a process's name: its state, parent, group and more; nothing once it is gone."""
    try:
        return file.read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
