"""An error that processes have alike is raised by the first of a machine, and none is lost.

They are here one after the other, in a process that has their store.
"""

from __future__ import annotations

from collections.abc import Callable
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
    monkeypatch.setattr(processes, "_READ_SECONDS", 0.01)
    return store


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, BaseException], None]:
    """Run a body that fails in the process of that rank, of two on each machine."""

    def end(rank: int, error: BaseException) -> None:
        machine, local = divmod(rank, 2)
        monkeypatch.setenv("GROUP_RANK", str(machine))
        monkeypatch.setenv("LOCAL_RANK", str(local))
        fabric: Any = SimpleNamespace(world_size=4, global_rank=rank, broadcast=lambda name: name)
        with processes.ending_together(fabric, advice="begin again"):
            raise error

    return end


def test_an_error_that_all_have_is_raised_by_the_first_of_each_machine(
    store: HashStore, end: Callable[[int, BaseException], None]
) -> None:
    for first in (2, 0):
        with pytest.raises(ValueError, match="the loss is nan"):
            end(first, ValueError("the loss is nan"))
        with pytest.raises(SystemExit) as ended:
            end(first + 1, ValueError("the loss is nan"))
        assert ended.value.code == 2


@pytest.mark.parametrize("before", [[], [(0, "a disk is full")], [(2, "the loss is nan")]])
def test_an_error_that_the_first_of_a_machine_has_not_is_raised(
    store: HashStore, end: Callable[[int, BaseException], None], before: list[tuple[int, str]]
) -> None:
    for rank, text in [*before, (1, "the loss is nan")]:
        with pytest.raises(ValueError, match=text):
            end(rank, ValueError(text))


def test_a_store_that_is_gone_silences_nobody(
    end: Callable[[int, BaseException], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = Mock(side_effect=RuntimeError("connection was likely closed"))
    store = SimpleNamespace(check=closed, compare_set=closed)
    monkeypatch.setattr(processes, "_store", lambda _: store)
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
    store: HashStore,
    end: Callable[[int, BaseException], None],
    error: BaseException,
    said: str,
) -> None:
    with pytest.raises(type(error)):
        end(1, error)
    assert store.get("failed").decode() == said
