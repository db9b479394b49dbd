"""Of several processes with the same error one raises it, and none is lost.

They are here one after the other, in a process that has their store.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from vcycle.devices import processes


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> HashStore:
    store = HashStore()
    monkeypatch.setattr(processes, "_store", lambda _: store)
    monkeypatch.setattr(processes, "_READ_SECONDS", 0.0)
    return store


def end(rank: int, error: BaseException) -> None:
    """Run a body that fails in the process of that rank."""
    fabric: Any = SimpleNamespace(world_size=2, global_rank=rank, broadcast=lambda name: name)
    with processes.ending_together(fabric, advice="begin again"):
        raise error


def test_an_error_that_all_have_is_raised_by_one_of_each_machine(
    store: HashStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for machine in "01":
        monkeypatch.setenv("GROUP_RANK", machine)
        with pytest.raises(ValueError, match="the loss is nan"):
            end(2 * int(machine) + 1, ValueError("the loss is nan"))
        with pytest.raises(SystemExit) as ended:
            end(2 * int(machine), ValueError("the loss is nan"))
        assert ended.value.code == 2


def test_an_error_that_one_alone_has_is_raised_after_that_of_another(store: HashStore) -> None:
    with pytest.raises(ValueError, match="a disk is full"):
        end(1, ValueError("a disk is full"))
    with pytest.raises(ValueError, match="the loss is nan"):
        end(0, ValueError("the loss is nan"))


def test_a_store_that_is_gone_silences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Mock(side_effect=RuntimeError("connection was likely closed"))
    store = SimpleNamespace(check=closed, compare_set=closed)
    monkeypatch.setattr(processes, "_store", lambda _: store)
    monkeypatch.setattr(processes, "_READ_SECONDS", 0.0)
    for rank in (0, 1):
        with pytest.raises(ValueError, match="the loss is nan"):
            end(rank, ValueError("the loss is nan"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SystemExit(0), "process 1: SystemExit 0"),
        (KeyboardInterrupt(), "process 1: KeyboardInterrupt"),
        (RuntimeError("no clip like this"), "process 1: no clip like this"),
        (RuntimeError(), "process 1: RuntimeError"),
    ],
)
def test_the_others_read_what_ended_a_process(
    store: HashStore, error: BaseException, said: str
) -> None:
    with pytest.raises(type(error)):
        end(1, error)
    assert store.get("failed").decode() == said
