"""What the processes of a run tell each other, beside gradients and norm statistics.

Every function here is called by all processes at the same point; with one process each returns
what it was given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from vcycle.devices.fabric import Fabric

T = TypeVar("T")

_VOTE_SECONDS = 2.0
_MOST_STEPS = 100  # between votes, should the clock be wrong


def from_first(fabric: Fabric, read: Callable[[], T]) -> T:
    """What ``read`` returns in the first process, which alone calls it; its ValueError in all."""
    found: tuple[Any, str | None] = (None, None)
    if fabric.is_global_zero:
        try:
            found = (read(), None)
        except ValueError as error:
            if fabric.world_size == 1:
                raise
            found = (None, str(error))
    value, message = fabric.broadcast(found)
    if message is not None:
        raise ValueError(message)
    return cast(T, value)


def gathered(own: T, fabric: Fabric) -> list[T]:
    """What each process has, by rank."""
    if fabric.world_size == 1:
        return [own]
    found: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(found, own)
    return found


def united(own: dict[str, str], fabric: Fabric) -> dict[str, str]:
    """The entries of all processes."""
    return {key: value for each in gathered(own, fabric) for key, value in each.items()}


def mean_losses(losses: Tensor, fabric: Fabric) -> Tensor:
    """Losses averaged over the processes, each of which had as many clips."""
    if fabric.world_size > 1:
        losses = losses.clone()
        torch.distributed.all_reduce(losses)
        losses /= fabric.world_size
    return losses


def in_all(value: Tensor, fabric: Fabric) -> bool:
    """Whether a scalar is true in every process. Waits for the device."""
    if fabric.world_size == 1:
        return bool(value)
    votes = (~value.bool()).float()
    torch.distributed.all_reduce(votes)
    return votes.item() == 0


class Votes:
    """Yes or no to several questions between steps, or batches: yes if any process says so.

    One process has its say after every step. Several hold a vote about every two seconds, because
    it makes the host wait for the device; from how long steps take they all find the same next one.
    """

    def __init__(self, fabric: Fabric, *, first_step: int) -> None:
        self._fabric = fabric
        self._held_at = first_step
        self._held_time = time.monotonic()
        self._next = first_step + 1

    def hold(self, next_step: int, *questions: bool) -> tuple[bool, ...]:
        """The answers after a step; each is no while no vote is held."""
        if self._fabric.world_size == 1:
            return questions
        if next_step < self._next:
            return (False,) * len(questions)
        now = time.monotonic()
        step_seconds = (now - self._held_time) / max(next_step - self._held_at, 1)
        votes = torch.tensor([step_seconds, *map(float, questions)], device=self._fabric.device)
        torch.distributed.all_reduce(votes, torch.distributed.ReduceOp.MAX)
        slowest, *answers = votes.tolist()
        steps = int(_VOTE_SECONDS / max(slowest, 1e-9))
        self._held_at, self._held_time = next_step, now
        self._next = next_step + min(max(steps, 1), _MOST_STEPS)
        return tuple(answer > 0 for answer in answers)


def batch_votes(num_batches: int, fabric: Fabric) -> Callable[[int, bool], bool]:
    """A vote after each batch of an evaluation, ``num_batches`` of which are this process's.

    No process gets so far ahead that it waits too long for the others. The answer is no after
    batches that not all processes have.
    """
    votes = Votes(fabric, first_step=0)
    of_all = min(gathered(num_batches, fabric))
    return lambda batches, question: batches < of_all and votes.hold(batches, question)[0]
