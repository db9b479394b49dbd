"""Output that nobody takes any more: the command goes on without it.

In: standard output and error, of which the reader may go away (``vcycle train ... | head``), the
terminal be closed or the disk be full. Out: the same streams, which from then on lead nowhere, and
of a command whose output is its result an error if it was not written.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, TextIO


@contextmanager
def lasting_output() -> Iterator[Callable[[], None]]:
    """Within this, writing to standard output or error never raises OSError.

    Yields a function that raises it after all, if output is lost that somebody was to read: a full
    disk has lost it, and nobody reads on in a pipe or a terminal that is closed.
    """
    before = sys.stdout, sys.stderr  # each is None if it is closed from the beginning
    for each in before:
        if isinstance(each, TextIOWrapper):  # names that an encoding lacks are written as escapes
            each.reconfigure(errors="backslashreplace")
    lasting: Any = [each and _Lasting(each) for each in before]
    sys.stdout, sys.stderr = lasting

    def check() -> None:
        for each in filter(None, lasting):
            each.flush()
        output = lasting[0]
        lost = output.lost if output is not None and not output.isatty() else None
        if lost is not None and lost.errno != errno.EPIPE:
            raise OSError(lost.errno, lost.strerror, "standard output")

    try:
        yield check
    finally:
        sys.stdout, sys.stderr = before
        for each in filter(None, lasting):
            each.flush()  # what Python cannot write as it exits changes its exit code


class _Lasting:
    """A text stream that leads nowhere once it cannot be written to."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        """As at the beginning: what was started for a terminal is ended as if it still were one."""
        return self._is_terminal

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lead_nowhere(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lead_nowhere(error)

    def _lead_nowhere(self, error: OSError) -> None:
        """What the stream has buffered goes there, too."""
        self.lost = error
        with suppress(OSError):  # of a stream without a file descriptor
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
