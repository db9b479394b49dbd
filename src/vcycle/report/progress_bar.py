"""A bar for work that is counted: probing, preparing and writing videos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


@contextmanager
def progress_bar(text: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; calling what is yielded with (done, total) moves it."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
