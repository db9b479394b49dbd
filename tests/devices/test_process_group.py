"""Processes of a restart find each other, not those of the attempt before."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from tests.processes import PATIENCE
from vcycle.devices.process_group import agreed_name

pytestmark = pytest.mark.xdist_group("processes")
# The first process of the restart is late: the other would connect to the one that was killed.
RESTARTED = """
import os, signal, time, torch
from vcycle.devices.process_group import destroy_process_group, join_process_group
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
time.sleep(2 * attempt * (1 - rank))
join_process_group(torch.device("cpu"))
total = torch.ones(1)
torch.distributed.all_reduce(total)
assert total == 2
if attempt == 0:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
destroy_process_group()
"""


@pytest.fixture
def store() -> TCPStore:
    """A store as torchrun's agents keep it, through all attempts."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def names(store: TCPStore, world_size: int, *, last: int) -> list[str]:
    """What the processes of an attempt agree on, of which ``last`` comes after the others."""
    found: dict[int, str] = {}

    def agree(rank: int) -> None:
        own = TCPStore("127.0.0.1", store.port, is_master=False, wait_for_workers=False)
        found[rank] = agreed_name(own, rank, world_size, patience=timedelta(seconds=PATIENCE))

    processes = [threading.Thread(target=agree, args=(rank,)) for rank in range(world_size)]
    for rank, process in enumerate(processes):
        if rank != last:
            process.start()
    time.sleep(0.3)
    assert not found  # nothing of the attempt before makes them go on
    processes[last].start()
    for process in processes:
        process.join()
    return list(found.values())


def test_each_attempt_agrees_on_a_name_of_its_own(store: TCPStore) -> None:
    attempts = [names(store, size, last=last) for size, last in ((3, 0), (3, 2), (2, 1), (4, 1))]
    assert all(len(set(each)) == 1 for each in attempts)
    assert len({each[0] for each in attempts}) == len(attempts)


def test_a_process_that_waits_in_vain_says_so(store: TCPStore) -> None:
    with pytest.raises(TimeoutError, match="the 2 processes of the run did not all start within"):
        agreed_name(store, 1, 2, patience=timedelta(seconds=0.2))


def test_the_first_process_says_for_whom_it_waits(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vcycle.devices.process_group._SILENT_SECONDS", -1.0)
    for rank in (1, 0):
        with pytest.raises(TimeoutError):
            agreed_name(store, rank, 4, patience=timedelta(seconds=0.4))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("waiting for the other processes of 4: 2, 3; one that has failed has")


@pytest.mark.parametrize("rendezvous", ["c10d", "static"])
def test_processes_that_torchrun_starts_anew_find_each_other(
    tmp_path: Path, rendezvous: str
) -> None:
    (tmp_path / "restarted.py").write_text(RESTARTED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"c10d": ["--standalone"], "static": ["--master-port", str(port)]}
    torchrun = [sys.executable, "-m", "torch.distributed.run", *options[rendezvous]]
    ended = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", "--max-restarts", "1", "restarted.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr
