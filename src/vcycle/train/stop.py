"""Requests to stop, collected so that a step is never cut in half.

They are Ctrl-C, SIGTERM, SIGUSR1, which SLURM is mostly told to send before the time limit, and
SIGHUP, which a terminal or an ssh session sends that is closed, unless ``nohup`` has it ignored.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vcycle.devices.processes import Stopped

# torchrun passes on the Ctrl-C that its processes have had from the terminal.
_ECHO_SECONDS = 2.0
_KEEPING = (
    f"stopping as soon as what is done can be kept; Ctrl-C {_ECHO_SECONDS:.0f} s from now stops at "
    f"once"
)


@contextmanager
def stop_requests(*, exits: bool = False, says: bool = False) -> Iterator[list[float]]:
    """The times of requests so far; Ctrl-C more than 2 s after the first is not held.

    If it ``says`` so, the first has a line on standard error. It promises nothing of a signal that
    torchrun also sends when another process is gone, with which nothing can be kept.

    SIGTERM always is: a scheduler may send it again and again, and means SIGKILL if it is not. If
    the process ``exits`` once the body has Stopped, all but Ctrl-C are ignored from then on: its
    exit code stays its own, although the first of several processes to exit has torchrun or SLURM
    send SIGTERM to the others.
    """
    received: list[float] = []

    def keep(number: int, _frame: object) -> None:
        now = time.monotonic()
        if received and number == signal.SIGINT and now > received[0] + _ECHO_SECONDS:
            raise KeyboardInterrupt
        if says and not received:
            with suppress(OSError):  # unbuffered: a handler may interrupt a print
                name = signal.Signals(number).name
                said = _KEEPING if number == signal.SIGINT else f"asked to stop by {name}"
                os.write(2, f"\n{said}\n".encode())
        received.append(now)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, keep) for number in numbers}
    try:
        yield received
    except Stopped:
        if exits:
            before |= dict.fromkeys(numbers[1:], signal.SIG_IGN)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
