"""The manifest: a table of videos with their labels and their metadata.

On disk it is ``manifest.csv`` beside ``classes.txt`` (line number = label), which people can read,
sort and edit. In memory it is a frozen ``Manifest`` that workers share.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from vcycle.data.atomic import write_atomic
from vcycle.data.metadata import INTEGERS, Location, Video, check_uri
from vcycle.data.tables import (
    check_line,
    parse_number,
    parse_table,
    parse_whole_number,
    placed,
    read_text,
    write_table,
)
from vcycle.schedule.messages import quoted

_NEEDED = ("path", "labels", "split", "flip")  # of a video
_LISTED, _REASONS = ("split", "videos"), ("path", "reason")
_TABLES = {
    "manifest.csv": _NEEDED,
    "listed.csv": _LISTED,
    "bad.csv": _REASONS,
    "missing.csv": _REASONS,
}
MANIFEST_FILES = (*_TABLES, "classes.txt")
"""A manifest on disk, with the lists of what is not in it."""
PREPARED_FILE = "prepared.json"
"""Beside a manifest whose videos ``vcycle data prepare`` has rewritten."""
_FOREIGN = (
    "not written by vcycle, which needs the name; rename it, or index to another folder by "
    "`vcycle data index ... --out FOLDER`"
)
_FIX = "correct it, or index the videos again"
_OPTIONAL = {"key_interval": "0", "spans": "", "offset": "0", "num_bytes": "0"}
_OPTIONAL |= {"start_seconds": "0", "end_seconds": "0"}
_COLUMNS = (*_NEEDED, *(each.name for each in fields(Video) if each.name not in _NEEDED))


@dataclass(frozen=True)
class Manifest:
    """Videos under one root directory. ``classes[label]`` is the label's name."""

    root: Path
    classes: tuple[str, ...]
    videos: tuple[Video, ...]
    multi_label: bool = False  # multi-hot targets; True if any video has spans or not one label
    listed: tuple[tuple[str, int], ...] = ()  # videos in each split as the dataset lists them

    def __post_init__(self) -> None:
        several = any(len(video.labels) != 1 or video.spans for video in self.videos)
        object.__setattr__(self, "multi_label", self.multi_label or several)

    def __len__(self) -> int:
        return len(self.videos)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def split(self, name: str) -> Manifest:
        """The videos of one split. Raises ValueError, naming the splits, if it is empty."""
        videos = tuple(video for video in self.videos if video.split == name)
        if not videos:
            known = sorted({video.split for video in self.videos})
            fix = "index at least two of each class, with a --val-share above 0"
            if name not in ("train", "val"):
                fix = "name one of these"
            elif known == ["val"]:
                fix = f"index a folder named {name} beside val, or rows of that split"
            elif len(known) > 1:
                fix = f"rename the folder or split that is for it to {name}, and index again"
            raise ValueError(
                f"split {name!r}: no video of {self.root} is in it; it has "
                f"{', '.join(known) or 'none'}; {fix}"
            )
        return replace(self, videos=videos)

    def check_classes(self) -> None:
        """Raise ValueError if there is nothing to tell apart."""
        if self.num_classes < 2 and not self.multi_label:
            raise ValueError(
                f"{self.root}: its videos are all of one class; a model needs at least two"
            )

    def coverage(self, split: str) -> float:
        """The share of the split's listed videos that is here; 1 if nothing was listed.

        And if more are here, as in a manifest that somebody has added to.
        """
        num_listed = dict(self.listed).get(split, 0)
        found = sum(video.split == split for video in self.videos)
        return min(1.0, found / num_listed) if num_listed else 1.0

    def locate(self, video: Video) -> Location:
        """Where the video's bytes are on this machine."""
        return locate(self.root, video.source)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Manifest:
        """Read ``manifest.csv``, given the file or its folder; files that did not change only once.

        Raises ValueError, naming file and line, if it cannot be read.
        """
        file = Path(path)
        if file.is_dir():
            file = file / "manifest.csv"
        elif not file.exists():
            raise ValueError(
                f"manifest {file}: not found; name where it is with --data, or make one with "
                f"`vcycle data index`"
            )
        classes_file = file.with_name("classes.txt")
        for needed in (file, classes_file):
            if not needed.is_file():
                raise ValueError(
                    f"{needed}: not found; make it with `vcycle data index`, of a folder a class "
                    f"with `vcycle data index folder {needed.parent}`"
                )
        beside = (file, classes_file, file.with_name("listed.csv"))
        return _read(file, tuple(_identity(each) for each in beside))

    def write(self, directory: str | os.PathLike[str] | None = None) -> Path:
        """Write ``manifest.csv`` and ``classes.txt``, each atomically; returns the manifest's path.

        A ``manifest.csv`` never lies beside classes that are not its own. Raises ValueError if a
        path or class could not be read back.
        """
        folder = Path(directory) if directory is not None else self.root
        with placed(str(folder), "correct it"):
            for name in self.classes:
                check_class(name)
            for video in self.videos:
                check_path(video.path)
        classes = "".join(f"{name}\n" for name in self.classes)
        folder.mkdir(parents=True, exist_ok=True)
        file, classes_file = folder / "manifest.csv", folder / "classes.txt"
        if not classes_file.is_file() or classes_file.read_bytes() != classes.encode():
            file.unlink(missing_ok=True)  # its labels index the old classes
            write_atomic(classes_file, classes)
        if self.listed:
            write_table(folder / "listed.csv", _LISTED, self.listed)
        else:
            (folder / "listed.csv").unlink(missing_ok=True)
        write_table(file, _COLUMNS, (_row_of_video(video) for video in self.videos))
        return file


def check_replaceable(folder: Path, classes: Sequence[str]) -> None:
    """Raise ValueError if a file that an index of ``classes`` is to replace is somebody else's.

    Tables are told by their columns; ``classes.txt`` by its text, or what lies beside it.
    """
    for name, columns in _TABLES.items():
        file = folder / name
        if not file.is_file():
            continue
        with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            found = next(csv.reader([lines.readline(1000)]), [])
        if not set(columns) <= set(found):
            raise ValueError(f"{file}: {_FOREIGN}")
    file = folder / "classes.txt"
    beside = ("manifest.csv", "probes.jsonl", "index.json")
    if file.is_file() and not any((folder / each).is_file() for each in beside):
        expected = "".join(f"{name}\n" for name in classes).encode()
        if file.read_bytes()[: len(expected) + 1] != expected:
            raise ValueError(f"{file}: {_FOREIGN}")


def locate(root: Path, source: Location) -> Location:
    """Where this machine finds bytes that a manifest in ``root`` names."""
    uri = source.uri
    if source.is_local:
        uri = str(root / uri)
    elif uri.startswith("file://"):
        uri = unquote(uri.removeprefix("file://").removeprefix("localhost"))
    return replace(source, uri=uri)


def write_reasons(path: Path, reasons: Mapping[str, str]) -> None:
    """Write a table of videos and why they are left out; no file if there are none."""
    if not reasons:
        path.unlink(missing_ok=True)
        return
    write_table(path, _REASONS, sorted(reasons.items()))


def check_path(path: str) -> None:
    """Raise ValueError if a manifest cannot name a video by this path or URI."""
    check_line(path, "path")
    parts = PurePosixPath(path).parts
    if "://" in path:
        check_uri(path)
    elif path.startswith("/") or ".." in parts or not parts:
        raise ValueError(
            f"path {quoted(path)} leaves the manifest's folder and is no URI such as file:///videos/a.mp4"
        )


def check_class(name: str) -> None:
    """Raise ValueError if the name cannot be a line of ``classes.txt``."""
    check_line(name, "class")
    if not name.strip():
        raise ValueError("a class has no name")


def read_classes(file: Path, *, fix: str = _FIX) -> tuple[str, ...]:
    """One name a line; blank lines at the end are ignored. Only a newline ends a line."""
    text = read_text(file, fix=fix).rstrip("\n")
    names = text.split("\n") if text else []
    for line, name in enumerate(names, start=1):
        if not name.strip():
            raise ValueError(f"{file} line {line}: names no class; {fix}")
        with placed(f"{file} line {line}", fix):
            check_line(name, "class")
    return tuple(names)


def _identity(file: Path) -> tuple[int, ...]:
    """What another file, or another content, of this name does not have; empty without one."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=2)
def _read(file: Path, identities: tuple[tuple[int, ...], ...]) -> Manifest:
    """Read once for all parts of a command: of a large set it takes a quarter of a minute."""
    classes = read_classes(file.with_name("classes.txt"))
    videos = parse_table(
        file,
        tuple(name for name in _COLUMNS if name not in _OPTIONAL),
        lambda row: _video_of_row({**_OPTIONAL, **row}, num_classes=len(classes)),
        fix=_FIX,
    )
    if not videos:
        raise ValueError(f"{file}: lists no video; index a folder that holds some")
    return Manifest(file.parent, classes, tuple(videos), listed=_read_listed(file.parent))


def _read_listed(folder: Path) -> tuple[tuple[str, int], ...]:
    file = folder / "listed.csv"
    if not file.exists():
        return ()
    return tuple(
        parse_table(
            file,
            _LISTED,
            lambda row: (row["split"], parse_whole_number(row["videos"], "videos")),
            fix=_FIX,
        )
    )


def _row_of_video(video: Video) -> list[str]:
    row = {name: str(getattr(video, name)) for name in _COLUMNS}
    row["labels"] = ";".join(str(label) for label in video.labels)
    row["flip"] = str(int(video.flip))
    row["spans"] = ";".join(f"{start}-{end}" for start, end in video.spans)
    return [row[name] for name in _COLUMNS]


def _video_of_row(row: Mapping[str, str], *, num_classes: int) -> Video:
    check_path(row["path"])
    labels = tuple(
        parse_whole_number(text, "label") for text in row["labels"].split(";") if text.strip()
    )
    for label in labels:
        if label >= num_classes:
            raise ValueError(
                f"label {label} of {row['path']} is out of range; classes.txt names "
                f"{num_classes} classes, 0 to {num_classes - 1}"
            )
    return Video(
        path=row["path"],
        labels=labels,
        split=row["split"],
        flip=bool(parse_whole_number(row["flip"], "flip")),
        codec=row["codec"],
        spans=_spans(row["spans"], num_labels=len(labels)),
        **{name: parse_whole_number(row[name], name) for name in INTEGERS},
        frame_rate=parse_number(row["frame_rate"], "frame_rate"),
        duration_seconds=parse_number(row["duration_seconds"], "duration_seconds"),
        start_seconds=parse_number(row["start_seconds"], "start_seconds"),
        end_seconds=parse_number(row["end_seconds"], "end_seconds"),
    )


def _spans(text: str, *, num_labels: int) -> tuple[tuple[float, float], ...]:
    pairs = [re.split("(?<!e)-", span) for span in text.split(";") if span]  # 1e-05 is a number
    if pairs and (len(pairs) != num_labels or any(len(pair) != 2 for pair in pairs)):
        raise ValueError(f"spans {quoted(text)}: give start-end in seconds for each of the labels")
    return tuple((parse_number(start, "start"), parse_number(end, "end")) for start, end in pairs)
