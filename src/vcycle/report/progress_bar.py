"""A bar for work that is counted: probing, preparing and writing videos."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from vcycle.train.activity import Activity


@contextmanager
def progress_bar(text: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, elsewhere a line every few seconds, even if nothing moves.

    Calling what is yielded with (done, total) moves it.
    """
    if console.is_terminal:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(text, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)
        return
    with Activity(console) as activity:
        activity.update(text)
        yield lambda done, total: activity.update(lambda: f"{text}: {done} of {total}")
