"""A journal of what a run has done, so that the next run continues after an interruption.

It is a file of JSON lines, appended as work is done. The last line of a killed run may be cut short
and is then ignored.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from vcycle.data.atomic import naming, open_own

Row = dict[str, Any]


class JournalInUse(ValueError):  # noqa: N818
    """Another run has the journal open."""


class Journal:
    """``rows`` reads those of earlier runs; ``add`` appends one. One process has it open.

    Entering raises JournalInUse if another run has it open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Journal:
        file = open_own(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._file = os.fdopen(file, "a+", encoding="utf-8", errors="replace", buffering=1)
        try:
            _lock(self._file, self.path)
        except ValueError:
            self._file.close()
            raise
        self._file.seek(0)
        last = deque(self._file, maxlen=1)
        if last and not last[0].endswith("\n"):
            self._file.write("\n")
        return self

    def __exit__(self, *error: object) -> None:
        with naming(self.path):
            self._file.close()

    def rows(self) -> Iterator[Row]:
        """The rows so far, streamed from the file. Add none while reading."""
        self._file.seek(0)
        for line in self._file:
            row = _row(line)
            if row is not None:
                yield row

    def add(self, row: Row) -> None:
        """Append a row; it is in the file when this returns."""
        with naming(self.path):
            self._file.write(json.dumps(row) + "\n")


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def wait_for_others(path: Path) -> None:
    """Wait until no other run has the journal open, and say so."""
    if not path.is_file():
        return
    with path.open("a") as file:
        try:
            _lock(file, path)
        except JournalInUse:
            print(f"{path.parent}: another run is indexing it; waiting for that", flush=True)
            fcntl.lockf(file, fcntl.LOCK_EX)


def _lock(file: TextIO, path: Path) -> None:
    """Lock the file until this process ends; workers do not inherit the lock."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise JournalInUse(
            f"{path.parent}: another run is writing there; wait for it or choose another folder"
        ) from None
    except OSError:  # a file system without locks
        return
