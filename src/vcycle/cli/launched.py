"""Which of several processes this is, as torchrun says it, before there is PyTorch to ask.

In: the variables of torchrun, which the tasks of ``srun`` get too. Out: whether there are several,
and whether this is the one that prints.
"""

from __future__ import annotations

import os


def is_launched() -> bool:
    """Whether this is one of the processes that torchrun started."""
    return "WORLD_SIZE" in os.environ


def is_one_of_several() -> bool:
    """Whether torchrun started more than one."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def is_by_gpus(number: int | None) -> bool:
    """Whether ``--gpus`` of that number starts as many processes: all of them are here."""
    places = {os.environ.get(name) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    return places == {str(number)}


def is_first() -> bool:
    """Whether this is the only process, or the first of several: the one that prints."""
    return int(os.environ.get("RANK", 0)) == 0


def is_first_here() -> bool:
    """Whether this is the only process of its machine, or the first of them."""
    return int(os.environ.get("LOCAL_RANK", 0)) == 0
