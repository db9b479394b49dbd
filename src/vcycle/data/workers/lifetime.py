"""How a worker process begins, and how it ends: with its parent, and with a reason.

A parent process goes in; children that do not outlive it, and cost it no signal, come out, and what
ended one, as text.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

Work = Callable[[Iterator[Any], Connection], None]
"""Of a worker: takes what it is sent until its parent ends, and sends its answers."""
STOOD_STILL_SECONDS = 5.0
"""Between two looks at workers: this process was busy, or stopped, maybe they with it."""
ASKING_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Of a terminal, a scheduler or torchrun; they reach the workers too."""
_ENDS_WITHIN_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def process_context() -> Any:
    """How to start processes: by forking, which is cheap and shares memory."""
    return multiprocessing.get_context("fork")


@contextmanager
def forking() -> Iterator[None]:
    """Start processes in its body, to which this one leaves no garbage nor signals.

    A child that collected a decoder of this process would wait for its threads, which it does not
    have. Signals that ask to end arrive after the body: Python drops what a handler raises while it
    forks, as Ctrl-C does.
    """
    gc.freeze()
    try:
        with _signals_postponed():
            yield
    finally:
        gc.unfreeze()


@contextmanager
def _signals_postponed() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # handlers run in that one
        yield
        return
    arrived: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.getsignal(number) for number in ASKING_TO_END}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    for number in handled:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        for each in arrived:
            signal.raise_signal(each)


def start_worker(work: Work, *, name: str) -> tuple[Any, Connection, Connection]:
    """Start a process; returns it, where to send its tasks, and where its answers arrive.

    For the body of ``forking``.
    """
    context = process_context()
    tasks, to_worker = context.Pipe(duplex=False)
    from_worker, answers = context.Pipe(duplex=False)
    process = context.Process(
        target=_serve,
        args=(work, tasks, answers, os.getpid(), threading.get_native_id()),
        name=name,
        daemon=True,
    )
    with warnings.catch_warnings():
        # Newer Pythons warn of forking beside threads. Workers never wait for a lock of those.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    # The worker's ends: closed here, so that its death closes the pipe.
    tasks.close()
    answers.close()
    return process, to_worker, from_worker


def _serve(work: Work, tasks: Connection, answers: Connection, parent: int, thread: int) -> None:
    _end_with(parent, thread)
    work(_received(tasks, parent), answers)


def _received(tasks: Connection, parent: int) -> Iterator[Any]:
    while True:
        while not tasks.poll(1.0):
            if os.getppid() != parent:
                return
        yield tasks.recv()


def _end_with(parent: int, thread: int) -> None:
    """Have this process killed when its parent ends, even in the middle of a job that hangs.

    ``thread`` is the native id of the parent's thread that started it. Linux sends the signal when
    that thread ends, so it is requested only if that is the main thread, whose id is the process's.
    """
    if thread == parent:
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
