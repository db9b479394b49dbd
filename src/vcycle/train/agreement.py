"""What the processes of a run tell each other, beside gradients and norm statistics.

Every function here is called by all processes at the same point; with one process each returns
what it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor

T = TypeVar("T")


def from_first(fabric: Fabric, read: Callable[[], T]) -> T:
    """What ``read`` returns in the first process, which alone calls it."""
    found: Any = fabric.broadcast(read() if fabric.is_global_zero else None)
    return cast(T, found)


def mean_losses(losses: Tensor, fabric: Fabric) -> Tensor:
    """Losses averaged over the processes, each of which had as many clips."""
    if fabric.world_size > 1:
        torch.distributed.all_reduce(losses)
        losses /= fabric.world_size
    return losses


def any_process(value: bool, fabric: Fabric) -> bool:
    """Whether ``value`` is true in any process."""
    if fabric.world_size == 1:
        return value
    votes = torch.tensor(float(value), device=fabric.device)
    torch.distributed.all_reduce(votes)
    return votes.item() > 0


def united(own: dict[str, str], fabric: Fabric) -> dict[str, str]:
    """The entries of all processes."""
    if fabric.world_size == 1:
        return own
    lists: list[dict[str, str]] = [{}] * fabric.world_size
    torch.distributed.all_gather_object(lists, own)
    return {key: value for each in lists for key, value in each.items()}
