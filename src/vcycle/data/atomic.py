"""Atomic files: each appears under its name only when it is complete.

A file is written as ``.name.PID`` in the same folder and then renamed, so that a run that is killed
leaves no incomplete file under a name that anything reads.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PARTIAL = re.compile(r"\.(.+)\.\d+", re.DOTALL)


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A file to write, renamed to ``path`` at the end and removed if there is an error."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path, instead_of=partial):
            yield partial
            partial.replace(path)
    finally:
        with suppress(OSError):  # of a disk for reading only, which would hide the first error
            partial.unlink(missing_ok=True)


def write_atomic(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic(path) as partial:
        partial.write_text(text, encoding="utf-8")


def open_own(path: Path, flags: int) -> int:
    """The descriptor of a file that only vcycle writes. Raises ValueError for a link or a device.

    In a folder from elsewhere a link would lead to a file of somebody's own.
    """
    problem = f"{path}: it is no file of its own, but a link or a device; remove it"
    try:
        file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(problem) from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ValueError(problem)
    return file


def check_output(path: Path, *suffixes: str, flag: str) -> None:
    """Raise ValueError unless ``path`` can be written, at most in place of a file of its kind."""
    if not path.parent.is_dir():
        raise ValueError(f"{flag} {path}: there is no folder {path.parent}; make it")
    if path.is_dir():
        raise ValueError(f"{flag} {path}: it is a folder; give a file in it")
    if not is_writable(path.parent):
        raise ValueError(f"{flag} {path}: {path.parent} is read-only; name a file elsewhere")
    if path.exists() and path.suffix.lower() not in suffixes:
        raise ValueError(f"{flag} {path}: it is there, and no {suffixes[0]} file; name another")


def is_writable(folder: Path) -> bool:
    """Whether this user may write there; root could anywhere, but not where nobody is meant to."""
    return os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


@contextmanager
def naming(path: Path, *, instead_of: Path | None = None) -> Iterator[None]:
    """Have an OSError inside that names no file, such as that of a full disk, name this one.

    And say what to do if its folder is not there.
    """
    try:
        yield
    except OSError as error:
        if error.filename not in (None, str(instead_of)):
            raise
        why = error.strerror or str(error)
        if error.errno == errno.ENOENT and not path.parent.is_dir():
            why = f"there is no folder {path.parent}; make it, or name another"
        raise OSError(error.errno, why, str(path)) from error


def remove_partials(folder: Path, names: Iterable[str]) -> None:
    """Remove what killed runs left of these files under ``folder``, and nothing else.

    The caller makes sure that no other run is writing them.
    """
    paths = {folder / name for name in names}
    for parent in {path.parent for path in paths}:
        try:
            files = list(parent.iterdir())
        except OSError:  # nothing has been written there yet
            continue
        for file in files:
            match = _PARTIAL.fullmatch(file.name)
            if match and parent / match[1] in paths:
                file.unlink(missing_ok=True)  # a worker that is ending removes its own
