"""Whether a file or a folder of frames is what it was: its size, and when it last changed.

A path goes in; numbers that a journal can hold come out. Nothing is opened.
"""

from __future__ import annotations

import os
from pathlib import Path


def file_stamp(path: Path) -> list[int]:
    """A file's size in bytes and time of change in nanoseconds; zeros if it does not exist."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return [0, 0]
    return [status.st_size, status.st_mtime_ns]


def original_stamp(path: Path) -> list[int]:
    """Of a file its ``file_stamp``, of a folder of frames its ``frames_stamp``."""
    return frames_stamp(path) if os.path.isdir(path) else file_stamp(path)  # noqa: PTH112


def frames_stamp(folder: Path) -> list[int]:
    """Of a folder of frames, the stamps of it, of its first file and of its last, by name.

    Whoever extracts frames anew over the old ones writes both, and leaves the folder as it was.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError:
        names = []
    ends = (min(names), max(names)) if names else ()
    return [each for path in (folder, *(folder / n for n in ends)) for each in file_stamp(path)]
