"""Votes: held by the clock, at steps that all processes find alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vcycle.devices import agreement
from vcycle.devices.agreement import Votes, from_first


def fabric(world_size: int) -> Any:
    return SimpleNamespace(world_size=world_size, device=torch.device("cpu"), is_global_zero=True)


@pytest.mark.parametrize(
    ("own", "slowest", "distance"),
    [(30.0, 30.0, 1), (1.5, 1.5, 1), (0.5, 0.5, 4), (0.1, 0.5, 4), (0.001, 0.001, 100)],
)
def test_votes_are_two_seconds_apart_by_the_slowest_process(
    monkeypatch: pytest.MonkeyPatch, own: float, slowest: float, distance: int
) -> None:
    now = 0.0
    held = []

    def all_reduce(votes: torch.Tensor, operation: object) -> None:
        assert operation == torch.distributed.ReduceOp.MAX
        held.append(step)
        votes[0] = max(float(votes[0]), slowest)
        votes[2] = 1.0  # another process says so

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(agreement.time, "monotonic", lambda: now)
    votes = Votes(fabric(2), first_step=7)
    for step in range(8, 250):
        now += own
        answers = votes.hold(step, True, False)
        assert answers == ((True, True) if step in held else (False, False))
    assert held == list(range(8, 250, distance))


def test_one_process_has_its_say_after_every_step() -> None:
    votes = Votes(fabric(1), first_step=0)
    for step in range(1, 5):
        assert votes.hold(step, True, False) == (True, False)


def test_an_error_of_the_first_process_is_that_of_all() -> None:
    """Others wait for what it read, so they must learn that it could not."""
    sent: list[Any] = []

    def refuse() -> int:
        raise ValueError("run folder: it is not empty")

    first, other = fabric(2), fabric(2)
    other.is_global_zero = False
    first.broadcast = lambda found: sent.append(found) or found
    other.broadcast = lambda found: sent[-1]
    for each in (first, other):
        with pytest.raises(ValueError, match="it is not empty"):
            from_first(each, refuse)
    assert [from_first(each, lambda: 3) for each in (first, other)] == [3, 3]
