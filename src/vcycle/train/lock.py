"""The lock of a run folder: one run writes in it at a time.

In: the folder. Out: nothing, or a ValueError that tells who is there. The lock is the operating
system's (``fcntl``), which it lifts if the process dies, and which NFS passes on to other machines;
on a file system that has none, nothing is locked.
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import os
import socket
import time
from pathlib import Path

LOCK_NAME = ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EROFS)


class FolderLock:
    """The lock of one folder, taken at most once by this object."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None  # its descriptor

    def take(self) -> None:
        """Lock the folder, which exists. Raises ValueError if another process has."""
        if self._file is not None:
            return
        try:
            file = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return
            raise
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(file, 1000).decode(errors="replace").strip() or "another process"
            os.close(file)
            if error.errno in _NO_LOCKS:
                return
            raise ValueError(
                f"run folder {self._folder}: in use by {holder}; wait until that ends or stop it, "
                f"or choose another folder"
            ) from None
        os.ftruncate(file, 0)
        os.write(file, _myself().encode())
        self._file = file

    def release(self) -> None:
        """Let others have the folder. The file stays: removing it could split the lock in two."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None


def _myself() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        user = f"user {os.getuid()}"
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} of {user} on {socket.gethostname()} since {since}\n"
