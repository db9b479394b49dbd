"""What a command is doing at the moment, so that nothing is silent for more than five seconds.

In: a line of text whenever something else begins. Out: on a terminal a live line that counts the
seconds; elsewhere a plain line, again every few seconds for as long as nothing else is printed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress
from rich.status import Status
from rich.text import Text

_QUIET_SECONDS = 4.0


class Activity:
    """Says what goes on. Use it as a context manager, from one thread.

    ``update`` changes the text, which is printed if nothing has been for four seconds; ``say``
    prints a line at once. With ``live`` False nothing is drawn on a terminal: the caller does that.
    """

    def __init__(self, console: Console, *, live: bool = True) -> None:
        self._console = console
        self._status = Status("", console=console) if live and console.is_terminal else None
        self._plain = not console.is_terminal
        self._text: str | Callable[[], str] = ""
        self._began = self._printed = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Activity:
        if self._status is not None:
            self._status.start()
        if self._plain:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        self._over.set()
        if self._plain:
            self._thread.join()

    def begin(self, text: str) -> None:
        """Something else begins, which may take a while: said at once."""
        self.update(text)
        if self._plain:
            self.say(text)

    def update(self, text: str | Callable[[], str]) -> None:
        """Change the text; a function of no arguments is asked whenever it is printed."""
        with self._lock:
            self._text, self._began = text, time.monotonic()
        if self._status is not None and isinstance(text, str):
            self._status.update(Text(text))  # a path may look like markup

    def say(self, line: str) -> None:
        """Print a line; on a terminal broken between words, unless it is a command to copy."""
        is_whole = self._plain or line.lstrip().startswith("vcycle ")
        with self._lock:
            self._console.print(line, soft_wrap=is_whole, markup=False, highlight=False)
            self._printed = time.monotonic()

    def _repeat(self) -> None:
        while not self._over.wait(0.5):
            with self._lock:
                text, now = self._text, time.monotonic()
                if not text or now - self._printed < _QUIET_SECONDS:
                    continue
                since = now - self._began
            self.say(text() if callable(text) else f"{text} ({since:.0f} s)")


@contextmanager
def progress_bar(text: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """Of work that is counted: a bar on a terminal; elsewhere a line every few seconds.

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
