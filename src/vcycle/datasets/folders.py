"""The videos that lie under a folder: files of known suffixes, and folders of pictures.

Links are followed. A folder that cannot be read is passed on as if it were a video, so that its
probe says why. Nothing here opens a video.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv"}
)
_PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})


def videos_under(folder: Path) -> list[Path]:
    """Video files and folders of pictures, at any depth, in the order of their names.

    Each folder is visited once, by its own name rather than by a link's, and none that holds
    ``folder`` itself. A folder of pictures has no videos in it, and no subfolder that holds
    anything: a stray picture does not make one.
    """
    found: list[Path] = []
    seen = {_identity(above) for above in (*folder.absolute().parents, *folder.resolve().parents)}
    waiting = deque([folder])
    while waiting:
        here = waiting.popleft()
        try:
            identity = _identity(here)
            if identity in seen:
                continue
            seen.add(identity)
            folders, links, files = _content(here)
        except OSError:
            found.append(here)
            continue
        videos = [here / name for name in files if Path(name).suffix.lower() in VIDEO_SUFFIXES]
        pictures = any(Path(name).suffix.lower() in _PICTURE_SUFFIXES for name in files)
        if pictures and not videos and here != folder and not any(map(_is_used, folders + links)):
            found.append(here)
            continue
        found += videos
        waiting.extendleft(folders)
        waiting.extend(links)
    return sorted(found)


def plain_name(path: Path, top: Path) -> str:
    """A path's name under ``top`` with forward slashes, as one line of UTF-8.

    What cannot be written so is escaped. No file has the name then: its probe will say so.
    """
    name = os.fsencode(path.relative_to(top).as_posix()).decode(errors="backslashreplace")
    return name.replace("\n", "\\n").replace("\r", "\\r")


def _content(folder: Path) -> tuple[list[Path], list[Path], list[str]]:
    """The folders in a folder, the links to folders, and the names of all else."""
    folders, links, files = [], [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not _is_folder(entry):
                files.append(entry.name)
            elif entry.is_symlink():
                links.append(folder / entry.name)
            else:
                folders.append(folder / entry.name)
    return folders, sorted(links), files


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere, or in a circle
        return False


def _is_used(folder: Path) -> bool:
    """Whether a folder holds anything, as far as one can see."""
    try:
        with os.scandir(folder) as entries:
            return any(True for _ in entries)
    except OSError:
        return True


def _identity(folder: Path) -> tuple[int, int]:
    facts = folder.stat()
    return facts.st_dev, facts.st_ino
