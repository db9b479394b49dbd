"""Several processes end together.

In: the body of a command, in each of the processes that torchrun started. Out: if it fails in one,
that one raises its error, and the others print what it was and exit, even from inside an exchange
that would wait for it for ever.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import NoReturn

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from vcycle.devices.fabric import Fabric
from vcycle.devices.process_group import is_store_of_agent

_POLL_SECONDS = 0.5
_READ_SECONDS = 4 * _POLL_SECONDS  # in which the other processes read what failed
_GRACE_SECONDS = 3.0  # for a process to come to its own end, with its own message
# Of exchanges with a process that is gone, as gloo and NCCL say it.
_IS_GONE = ("closed by peer", "reset by peer", "Broken pipe", "remote process exiting")


class Stopped(KeyboardInterrupt):
    """All processes agreed to stop, as Ctrl-C or SIGTERM asked them to."""


@contextmanager
def ending_together(fabric: Fabric, *, advice: str) -> Iterator[None]:
    """Run the body so that an error in one process ends all of them; one process runs it as it is.

    One that is killed says nothing: the others end with a line that says so, and ``advice``.
    After an error the process group is left as it is: to destroy it would wait for the others.
    """
    if fabric.world_size == 1:
        yield
        return
    store = _store(fabric.broadcast(uuid.uuid4().hex))
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(store, over), daemon=True)
    watcher.start()
    try:
        yield
    except Stopped:
        over.set()
        raise
    except BaseException as error:
        over.set()
        is_gone = isinstance(error, RuntimeError) and any(each in str(error) for each in _IS_GONE)
        text = f"another process is gone; {advice}" if is_gone else str(error)
        if not isinstance(error, Exception):  # of SystemExit the text is a number
            text = f"{type(error).__name__} {error}".rstrip()
        first = own = f"process {fabric.global_rank}: {text or type(error).__name__}"
        with suppress(RuntimeError):  # the process that keeps the store may be gone
            first = store.compare_set("failed", "", own).decode()
            if fabric.global_rank == 0 and not is_store_of_agent():
                time.sleep(_READ_SECONDS)  # the store ends with this process
        if is_gone or (first != own and not isinstance(error, ValueError | OSError)):
            _exit(first)  # the error is that the other process is gone
        raise
    over.set()
    watcher.join()
    fabric.barrier()


def _store(prefix: str) -> Store:
    """A further connection to the store through which the processes found each other.

    torchrun keeps that through its restarts, with what an earlier attempt left: hence ``prefix``.
    """
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
    )
    return PrefixStore(prefix, store)


def _watch(store: Store, over: threading.Event) -> None:
    """Exit if another process says that it failed, or the one that keeps the store is gone."""
    message = "the first process is gone"
    with suppress(RuntimeError):
        while not store.check(["failed"]):
            if over.wait(_POLL_SECONDS):
                return
        message = store.get("failed").decode()
    if not over.wait(_GRACE_SECONDS):
        _exit(message)


def _exit(message: str) -> NoReturn:
    """Exit at once, from any thread, whether what prints is there or not."""
    try:
        print(f"vcycle: {message}", file=sys.stderr, flush=True)
        if sys.stdout.isatty():
            print("\x1b[?25h", end="")  # a live line hides the cursor
        sys.stdout.flush()
    finally:
        os._exit(1)
