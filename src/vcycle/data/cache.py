"""A cache of remote videos on a local disk, of bounded size, which several processes share.

A ``Location`` in a store goes in; one of a local file comes out, fetched once. Each file holds the
bytes of one video, whether that is a file of its own or a range of a shard. fsspec's own caches
have no bound, and keep whole shards or blocks of them.

The processes agree through locks of the operating system: a file that is being read is locked and
stays; of the others those that were read longest ago are removed to make room.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vcycle.data.atomic import atomic
from vcycle.data.decode.remote import fetch
from vcycle.data.metadata import Location

_KEPT_SHARE = 0.9  # of ``max_bytes``, after making room: that looks at every file
_NAME = re.compile("[0-9a-f]{64}")
_PARTIAL = re.compile(r"\.[0-9a-f]{64}\.\d+")
_DIGITS = 20  # of the bytes that are held, in the file ``.size``


def cache_folder() -> Path:
    """``vcycle`` among the user's caches. Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "vcycle").expanduser()


@dataclass(frozen=True)
class VideoCache:
    """At most ``max_bytes`` of videos in ``folder``, and those that are being read.

    Bytes are fetched once: a store's file that is replaced under its name stays what it was.
    """

    folder: Path
    max_bytes: int

    @contextmanager
    def local(self, place: Location) -> Iterator[Location]:
        """Where the bytes of ``place`` are on this disk, inside the context.

        That is ``place`` itself if the disk has no room for it, with its bytes if they have been
        fetched by then. Raises what ``fetch`` raises.
        """
        if place.num_bytes > self.max_bytes:
            yield place
            return
        file = self.folder / hashlib.sha256(str(place).encode()).hexdigest()
        held = _lock(file, place.num_bytes)
        if held is None:
            content = fetch(place)
            held = self._add(file, content, num_bytes=place.num_bytes)
            if held is None:
                yield replace(place, content=content)
                return
            del content  # the file is read
        try:
            with suppress(OSError):  # the folder is for reading only
                os.utime(held)  # read last
            yield Location(str(file))
        finally:
            os.close(held)

    def problem(self) -> str | None:
        """Why nothing can be kept in the folder, which is made if it is not there."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _exclusive(self.folder / ".size"):
                return None
        except OSError as error:
            return error.strerror or str(error)

    def _add(self, file: Path, content: bytes, *, num_bytes: int) -> int | None:
        """Write a file; its descriptor, locked, or None if there is no room.

        A file of another size than ``num_bytes``, which a crash left, is removed before.
        """
        if len(content) > self.max_bytes:
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _exclusive(self.folder / ".size") as size:
                held = _lock(file, num_bytes)  # another process may have been faster
                if held is not None:
                    return held
                known = os.pread(size, _DIGITS, 0)
                is_known = len(known) == _DIGITS and known.isdigit()
                if file.exists():
                    file.unlink()
                    is_known = False
                used = int(known) if is_known else self.max_bytes  # as found by making room
                if used + len(content) > self.max_bytes:
                    used = self._make_room(len(content))
                fits = used + len(content) <= self.max_bytes
                used += len(content) if fits else 0
                os.pwrite(size, f"{used:0{_DIGITS}d}".encode(), 0)
                if not fits:
                    return None
                with atomic(file) as partial:
                    partial.write_bytes(content)
                return _lock(file, num_bytes)
        except OSError:  # the disk is full, or has no locks: reading goes on without it
            return None

    def _make_room(self, num_bytes: int) -> int:
        """Remove what was read longest ago until there is room; the bytes that stay.

        Files that are not the cache's, should the folder have others, are left alone.
        """
        found: list[tuple[int, int, Path]] = []
        for each in os.scandir(self.folder):
            if _PARTIAL.fullmatch(each.name):  # a killed process left it: nobody else writes now
                Path(each).unlink()
            elif _NAME.fullmatch(each.name):
                status = each.stat()
                found.append((status.st_mtime_ns, status.st_size, Path(each)))
        left = sum(size for _, size, _ in found)
        for _, size, file in sorted(found):
            if left <= self.max_bytes * _KEPT_SHARE - num_bytes:
                break
            if _remove(file):
                left -= size
        return left


@contextmanager
def _exclusive(file: Path) -> Iterator[int]:
    """The descriptor of a file that one process at a time has."""
    held = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield held
    finally:
        os.close(held)


def _lock(file: Path, num_bytes: int) -> int | None:
    """The descriptor of a file that no other process removes until it is closed.

    None if there is no such file, or not of ``num_bytes``: 0 is any size but an empty file's.
    """
    while True:
        try:
            held = os.open(file, os.O_RDONLY)
        except OSError:  # not there, or not for this user
            return None
        try:
            fcntl.flock(held, fcntl.LOCK_SH)
        except OSError:  # a disk that has no locks any more
            os.close(held)
            return None
        with suppress(FileNotFoundError):
            status = os.fstat(held)
            if os.path.samestat(status, file.stat()):
                if status.st_size and num_bytes in (0, status.st_size):
                    return held
                os.close(held)
                return None
        os.close(held)  # it was removed between the two calls


def _remove(file: Path) -> bool:
    """Remove a file that nobody is reading; whether it is gone."""
    with file.open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        file.unlink()
        return True
