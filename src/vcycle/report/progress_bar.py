"""A bar for work that is counted: probing, preparing and writing videos."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

_LINE_SECONDS = 4.0


@contextmanager
def progress_bar(text: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, elsewhere a line every few seconds.

    Calling what is yielded with (done, total) moves it.
    """
    printed = time.monotonic()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(text, total=None)

        def move(done: int, total: int) -> None:
            nonlocal printed
            progress.update(task, completed=done, total=total)
            if not console.is_terminal and time.monotonic() - printed > _LINE_SECONDS:
                printed = time.monotonic()
                console.print(f"{text}: {done} of {total}", highlight=False)

        yield move
