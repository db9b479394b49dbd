"""How a worker process begins, and how it ends: with its parent, and with a reason.

A parent process goes in; children that do not outlive it come out, and what ended one, as text.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from typing import Any

STOOD_STILL_SECONDS = 5.0
"""Between two looks at workers: this process was busy, or stopped, maybe they with it."""
_ENDS_WITHIN_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def process_context() -> Any:
    """How to start processes: forking is cheap and shares memory, but is safe on Linux only."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def end_with(parent: int, thread: int) -> None:
    """Have this process killed when its parent ends, even in the middle of a job that hangs.

    ``thread`` is the native id of the parent's thread that started it. Linux sends the signal when
    that thread ends, so it is requested only if that is the main thread, whose id is the process's.
    """
    if sys.platform == "linux" and thread == parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the request
            os._exit(1)


def end(process: Any) -> bool:
    """Kill a process; False if it does not end within five seconds.

    As one that waits for a disk or a mount, until that answers: nobody waits for it, not even the
    interpreter at its end.
    """
    process.kill()
    process.join(_ENDS_WITHIN_SECONDS)
    if process.exitcode is None:
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
    return process.exitcode is not None


def death(exitcode: int | None) -> str:
    """What ended a process, in words."""
    if exitcode is not None and exitcode < 0:
        return f"signal {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"
