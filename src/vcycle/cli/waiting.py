"""What is said while a command imports or computes for long and prints nothing of its own.

In: what goes on. Out: lines on standard error, so that what a command prints stays its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from vcycle.cli.launched import is_first
from vcycle.train.activity import Activity


@contextmanager
def starting_pytorch() -> Iterator[None]:
    """Imports in its body, which take seconds, and on a cold disk many, are announced first.

    They are torch, and then what trains, which other commands do without.
    """
    if "lightning_fabric" in sys.modules:
        yield
        return
    with Activity(_console()) as activity:
        if "torch" in sys.modules:
            activity.update("starting PyTorch")
        else:
            activity.begin("starting PyTorch")
        yield


@contextmanager
def waiting_for(text: str) -> Iterator[None]:
    """Say what goes on in its body, every few seconds if it takes longer than that."""
    with Activity(_console()) as activity:
        activity.update(text)
        yield


def _console() -> Console:
    """Silent in all processes but one."""
    return Console(stderr=True, quiet=not is_first())
