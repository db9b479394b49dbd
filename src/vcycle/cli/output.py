"""Output that nobody takes any more: the command goes on without it.

In: standard output and error, of which the reader may go away (``vcycle train ... | head``), the
terminal be closed or the disk be full. Out: the same streams, which from then on lead nowhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any, TextIO


@contextmanager
def lasting_output() -> Iterator[None]:
    """Within this, writing to standard output or error never raises OSError."""
    before = sys.stdout, sys.stderr  # each is None if it is closed from the beginning
    for each in before:
        if isinstance(each, TextIOWrapper):  # names that an encoding lacks are written as escapes
            each.reconfigure(errors="backslashreplace")
    lasting: Any = [each and _Lasting(each) for each in before]
    sys.stdout, sys.stderr = lasting
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for each in filter(None, lasting):
            each.flush()  # what Python cannot write as it exits changes its exit code


class _Lasting:
    """A text stream that leads nowhere once it cannot be written to."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        """As at the beginning: what was started for a terminal is ended as if it still were one."""
        return self._is_terminal

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._lead_nowhere()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._lead_nowhere()

    def _lead_nowhere(self) -> None:
        """What the stream has buffered goes there, too."""
        with suppress(OSError):  # of a stream without a file descriptor
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
