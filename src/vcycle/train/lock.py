"""The lock of a run folder: one run writes in it at a time.

In: the folder, which is made if it is not there. Out: nothing, or a ValueError that tells who is
there. The lock is the operating system's (``fcntl``), which it lifts if the process dies, and which
NFS passes on to other machines; on a file system that has none, nothing is locked.
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from vcycle.data.atomic import naming, open_own

LOCK_NAME = ".lock"
_DEAD_NODE_SECONDS = 150.0
"""More than a server of NFS keeps the locks of a machine that is gone, 90 s by default."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EROFS)


class FolderLock:
    """The lock of one folder, taken at most once by this object."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / LOCK_NAME
        self._file: int | None = None  # its descriptor
        self._made = False  # the folder

    def take(self) -> None:
        """Make the folder and lock it. Raises ValueError if another process has, or for a link."""
        if self._file is not None:
            return
        self._made = not self._folder.exists()
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            file = open_own(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            raise
        deadline, holder = time.monotonic() + _DEAD_NODE_SECONDS, ""
        while (problem := _problem(file, self._path)) is not None:
            # One that is about to let go has emptied it.
            holder = os.pread(file, 1000, 0).decode(errors="replace").strip() or holder
            has_locks = problem.errno not in _NO_LOCKS
            if has_locks and _may_be_dead(holder) and time.monotonic() < deadline:
                time.sleep(1.0)
                continue
            os.close(file)
            if not has_locks:
                return
            raise ValueError(
                f"run folder {self._folder}: in use by {holder or 'another process'}; wait until "
                f"that ends or stop it, or choose another folder"
            )
        self._file = file
        with naming(self._path):
            os.ftruncate(file, 0)
            os.write(file, _myself().encode())

    def release(self) -> None:
        """Let others have the folder. One that this made, and that is still empty, is removed.

        Otherwise the file stays: removing it could split the lock in two.
        """
        if self._file is None:
            return
        os.ftruncate(self._file, 0)
        with suppress(OSError):  # somebody removes it, or has just put something there
            if self._made and list(self._folder.iterdir()) == [self._path]:
                self._path.unlink()
                self._folder.rmdir()
        os.close(self._file)
        self._file = None


def _problem(file: int, path: Path) -> OSError | None:
    """Lock an open file; what prevents it, if something does."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error
    # Whoever made the folder may have just removed it again.
    return None if _is_at(file, path) else BlockingIOError()


def _may_be_dead(holder: str) -> bool:
    """Whether torchrun may have begun this attempt because the holder's machine is gone."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    is_elsewhere = " on " in holder and f" on {socket.gethostname()} " not in holder
    return restarts != "0" and is_elsewhere


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _myself() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = f"user {os.getuid()}"
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} of {user} on {socket.gethostname()} since {since}\n"
