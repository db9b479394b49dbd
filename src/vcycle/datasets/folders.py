"""The videos under a folder: files of known suffixes, and folders of frames.

Links are followed; hidden files and folders are left out. A folder that cannot be read is returned
as if it were a video, so that its probe says why. No video is opened.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from vcycle.data.manifest import PREPARED_FILE
from vcycle.data.metadata import IMAGE_SUFFIXES
from vcycle.data.tables import without_control

VIDEO_SUFFIXES = frozenset(
    {
        *(".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv"),
        *(".3gp", ".mts", ".m2ts", ".ogv"),
    }
)
_UNREAD_SUFFIXES = (
    *(".gif", ".apng", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".ppm"),
    *(".pgm", ".asf", ".divx", ".f4v", ".m2v", ".mxf", ".rm", ".rmvb", ".vob", ".y4m"),
)
"""Of videos and images that are not read."""
READ_SUFFIXES = (
    f"files of videos end in {', '.join(sorted(VIDEO_SUFFIXES))}; images of a video's folder in "
    f"{', '.join(sorted(IMAGE_SUFFIXES))}"
)
"""What is read, for messages."""


def videos_under(folder: Path) -> list[Path]:
    """Video files and folders of frames, at any depth, sorted by name.

    Each folder is visited once, under its own name rather than a link's, and never one that holds
    ``folder`` itself or, below it, prepared copies. A folder of frames holds images, no video and
    no subfolder with content, so a stray image does not make one.
    """
    found: list[Path] = []
    seen = {_identity(above) for above in (*plain_path(folder).parents, *folder.resolve().parents)}
    waiting = deque([folder])
    while waiting:
        here = waiting.popleft()
        try:
            identity = _identity(here)
            if identity in seen or (here != folder and is_prepared(here)):
                continue
            seen.add(identity)
            folders, links, files = _content(here)
        except OSError:
            found.append(here)
            continue
        videos = [here / name for name in files if Path(name).suffix.lower() in VIDEO_SUFFIXES]
        images = any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in files)
        if images and not videos and here != folder and not any(map(_is_used, folders + links)):
            found.append(here)
            continue
        found += videos
        waiting.extendleft(folders)
        waiting.extend(links)
    return sorted(found)


def unread_under(folder: Path) -> list[Path]:
    """Files of videos and images of kinds that are not read; links to folders are not followed."""
    found: list[Path] = []
    for here, folders, files in os.walk(folder):
        folders[:] = [n for n in folders if not is_hidden(n) and not is_prepared(Path(here, n))]
        found += [
            Path(here, name)
            for name in files
            if name.lower().endswith(_UNREAD_SUFFIXES) and not is_hidden(name)
        ]
    return found


def plain_path(path: Path) -> Path:
    """Absolute and without ``..``; the names of links stay, unless a ``..`` may follow one."""
    return path.resolve() if ".." in path.parts else path.absolute()


def is_prepared(folder: Path) -> bool:
    """Whether a folder holds what ``vcycle data prepare`` wrote; False if it cannot be read."""
    try:
        return (folder / PREPARED_FILE).exists()
    except OSError:
        return False


def is_hidden(name: str) -> bool:
    """Whether a file or folder is the system's, such as ``._a.mp4`` of a Mac's archive."""
    return name.startswith(".") or name == "__MACOSX"


def plain_name(path: Path, top: Path) -> str:
    """A path's name under ``top`` with forward slashes, as one line of UTF-8.

    Other bytes are escaped. The name is then no file's, as its probe says.
    """
    name = os.fsencode(path.relative_to(top).as_posix()).decode(errors="backslashreplace")
    return without_control(name)


def _content(folder: Path) -> tuple[list[Path], list[Path], list[str]]:
    """The folders in a folder, the links to folders, and the names of the rest."""
    folders, links, files = [], [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
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
    except OSError:  # a broken or circular link
        return False


def _is_used(folder: Path) -> bool:
    """Whether a folder holds anything; True if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return any(True for _ in entries)
    except OSError:
        return True


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
