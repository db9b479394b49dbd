"""The process group of a run, which processes that torchrun started anew join too.

In: torchrun's variables. Out: torch's default process group. torchrun's agents keep one store for
all attempts, and ``init_process_group`` would read the addresses of processes that are gone from it
(pytorch/pytorch#135712). ``TORCHELASTIC_RESTART_COUNT`` cannot tell the attempts apart: each node
counts for itself. So the processes first agree on a name that no earlier attempt knew, and find
each other under it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import uuid
from contextlib import suppress
from datetime import timedelta

import torch
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from vcycle.schedule.messages import one_line

_POLL_SECONDS = 0.05
_PATIENCE = timedelta(minutes=30)  # torch's own, with gloo
_AGENT_PATIENCE = timedelta(seconds=10)  # for a store that was there before this process
_SILENT_SECONDS = 15.0  # of waiting, before a line says so
_RELEASE_SECONDS = 0.1  # for which gloo's threads have the interpreter to themselves


def join_process_group(device: torch.device) -> None:
    """Make the default process group, for GPUs or CPUs as ``device`` is; nothing if there is one.

    Raises TimeoutError or ConnectionError if the other processes have not started within 30
    minutes, ValueError if one of them has left word that it failed, and ConnectionError if the
    first machine is gone or its port is taken.
    """
    if torch.distributed.is_initialized():
        return
    try:
        store, rank, world_size = next(
            rendezvous("env://", timeout=_AGENT_PATIENCE if is_store_of_agent() else _PATIENCE)
        )
        store.set_timeout(_PATIENCE)
        name = agreed_name(store, rank, world_size, patience=_PATIENCE)
    except torch.distributed.DistError as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        if is_store_of_agent():
            raise ConnectionError(
                f"the store at {place}, through which the processes find each other, is gone; see "
                f"what the first machine says"
            ) from error
        raise ConnectionError(
            f"process {os.environ['RANK']}: the processes cannot meet at {place}: {one_line(error)}"
        ) from error
    on_gpu = device.type == "cuda"
    torch.distributed.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=PrefixStore(name, store),
        rank=rank,
        world_size=world_size,
        device_id=device if on_gpu else None,
    )


def agreed_name(store: Store, rank: int, world_size: int, *, patience: timedelta) -> str:
    """The same name in all processes of an attempt, and another one in each attempt.

    Every process leaves a random number under its rank, over that of an earlier attempt, and signs
    the list of all. A list that all have signed is of processes that live: none signs a list
    without its own number. Raises TimeoutError if ``patience`` is over before, and ValueError if a
    process has failed.
    """
    numbers = [f"vcycle/numbers/{each}" for each in range(world_size)]
    store.set(numbers[rank], uuid.uuid4().hex)
    start, has_said = time.monotonic(), rank > 0
    while (waited := time.monotonic() - start) < patience.total_seconds():
        if not has_said and waited > _SILENT_SECONDS:
            has_said = True
            missing = [str(each) for each, key in enumerate(numbers) if not store.check([key])]
            who = f": {', '.join(missing)}" if missing else ""
            print(
                f"waiting for the other processes of {world_size}{who}; one that has failed has "
                f"said why where it ran",
                file=sys.stderr,
                flush=True,
            )
        if store.check([_failed(world_size)]):
            raise ValueError(store.get(_failed(world_size)).decode())
        if store.check(numbers):
            name = hashlib.sha256(b" ".join(store.multi_get(numbers))).hexdigest()
            store.set(f"vcycle/{name}/{rank}", "signed")
            if store.check([f"vcycle/{name}/{each}" for each in range(world_size)]):
                return name
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(
        f"process {rank}: the {world_size} processes of the run did not all start within "
        f"{patience}; see what the others say"
    )


def is_store_of_agent() -> bool:
    """Whether the store is kept by torchrun's agent, and not by the first process."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def leave_word(message: str) -> None:
    """Tell processes that wait for this one in ``join_process_group`` why it will not come.

    torchrun ends those of its own machine, but not those of others. Nothing is said of a process
    that it will start anew, nor of one that had joined; srun has a flag for it.
    """
    starts_anew = os.environ.get("TORCHELASTIC_RESTART_COUNT") != os.environ.get(
        "TORCHELASTIC_MAX_RESTARTS"
    )
    if not is_store_of_agent() or starts_anew or torch.distributed.is_initialized():
        return
    with suppress(RuntimeError):  # the machine that keeps the store may be gone
        store, rank, world_size = next(rendezvous("env://", timeout=_AGENT_PATIENCE))
        store.compare_set(_failed(world_size), "", f"process {rank}: {message}")


def _failed(world_size: int) -> str:
    """The key of the first word; those who go on without a machine are fewer, and read another."""
    return f"vcycle/failed/{world_size}"


def destroy_process_group() -> None:
    """Destroy the process group, if there is one: its threads may abort an exit that it is left to.

    All processes call this. After an error none does: it would wait for the others. A model that
    was wrapped in DDP keeps gloo's threads alive all the same, and one that still holds a tensor
    while the interpreter ends aborts the process (pytorch/pytorch#179291): they get the time to let
    go of what they reduced last.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        time.sleep(_RELEASE_SECONDS)
