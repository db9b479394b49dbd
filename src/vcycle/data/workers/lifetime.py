"""How a worker process begins, and how it ends: with its parent, and with a reason.

In: a parent process. Out: children that do not outlive it, and what ended one, for people.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def process_context() -> Any:
    """How processes are started: forking is cheap and shares memory, but is safe on Linux only."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def end_with(parent: int, thread: int) -> None:
    """Have this process killed when its parent is, even within a job that never ends.

    ``thread`` is the native id of the parent's thread that started it. It is that thread's end
    that Linux tells of, so nothing is asked for unless it is the main one, of the process's id.
    """
    if sys.platform == "linux" and thread == parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before it was asked
            os._exit(1)


def death(exitcode: int | None) -> str:
    """What ended a process, for people."""
    if exitcode is not None and exitcode < 0:
        return f"signal {signal.Signals(-exitcode).name}"
    return f"exit code {exitcode}"
