"""A dataset as a reader lists it, before any video is opened.

The readers, one for each form in which datasets come, return a ``Listing``; ``index_videos`` turns
it into a manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from vcycle.data.manifest import check_class, check_path, locate
from vcycle.data.metadata import FOLDER_FRAME_RATE, Location
from vcycle.data.tables import check_line, placed
from vcycle.schedule.messages import counted, quoted

T = TypeVar("T")

SPLIT_NAMES = {"train": "train", "val": "val", "validate": "val", "validation": "val"}
SPLIT_NAMES |= {"test": "test", "training": "train", "valid": "val"}
_MOST_DIGITS = 18
Missing = tuple[str, str]  # name and split


@dataclass(frozen=True)
class Entry:
    """One listed video: its path under the listing's root or its URI, and what was listed of it.

    The fields are those of a manifest's ``Video``; the ``group`` that stays on one side of a split
    that was drawn, None of one that the data has; and whether the file may be that part already,
    cut out: it is if it is about as long. Raises ValueError if a
    manifest cannot name the video.
    """

    path: str
    labels: tuple[int, ...]
    split: str
    spans: tuple[tuple[float, float], ...] = ()
    offset: int = 0
    num_bytes: int = 0
    start_seconds: float = 0.0
    end_seconds: float = 0.0
    group: str | None = None
    may_be_cut: bool = False

    def __post_init__(self) -> None:
        check_path(self.path)

    @property
    def source(self) -> Location:
        """The bytes of the video, by its path in the listing."""
        return Location(self.path, self.offset, self.num_bytes)


@dataclass(frozen=True)
class Listing:
    """A dataset as its files describe it. ``missing`` was listed but is not under ``root``.

    ``frame_rate`` is that of videos kept as folders of frames; ``notes`` are for the user, one line
    each.
    """

    root: Path
    classes: tuple[str, ...]
    entries: tuple[Entry, ...]
    missing: tuple[Missing, ...] = ()
    frame_rate: float = FOLDER_FRAME_RATE
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        with placed(str(self.root), "rename it"):
            for name in self.classes:
                check_class(name)


def make_listing(
    top: Path,
    classes: tuple[str, ...],
    found: Sequence[Entry | Missing],
    *,
    frame_rate: float = FOLDER_FRAME_RATE,
) -> Listing:
    """A ``Listing`` of what a reader found, and of what it did not find."""
    entries = tuple(each for each in found if isinstance(each, Entry))
    missing = tuple(each for each in found if not isinstance(each, Entry))
    return Listing(top, classes, entries, missing, frame_rate)


def sorted_classes(labels: Iterable[str]) -> tuple[str, ...]:
    """The names of classes in order, by number if all are numbers."""
    names = sorted(set(labels))
    are_numbers = all(name.isdecimal() and len(name) <= _MOST_DIGITS for name in names)
    return tuple(sorted(names, key=int) if are_numbers else names)


def notes_on_labels(names: Sequence[str], labels: Sequence[Sequence[object]]) -> tuple[str, ...]:
    """That classes are scored each by itself, and which video is a reason."""
    others = [name for name, each in zip(names, labels, strict=True) if len(each) != 1]
    if not others:
        return ()
    return (
        f"{counted(len(others), 'video')} with no or several labels, such as {quoted(others[0])}: "
        f"each class is scored by itself (mAP)",
    )


def each_once(rows: Sequence[T]) -> tuple[list[T], tuple[str, ...]]:
    """The rows, each once, and a note if some were there again."""
    kept = list(dict.fromkeys(rows))
    number = len(rows) - len(kept)
    note = f"{counted(number, 'row')} left out as one before says the same"
    return kept, (note,) if number else ()


def dataset_folder(path: str | os.PathLike[str]) -> Path:
    """The folder that holds a dataset. Raises ValueError if it does not exist."""
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; give the one that holds the videos")
    with placed(str(folder), "rename it"):
        check_line(str(folder.absolute()), "its path")
    return folder


def local_path(text: str, folder: Path) -> str:
    """A path under ``folder`` from there, in one spelling, and any other as a URI."""
    if "://" in text or not text:
        return text
    top = Path(os.path.abspath(folder))  # noqa: PTH100  a link stays a link
    path = Path(os.path.abspath(top / text))  # noqa: PTH100
    return (
        path.relative_to(top).as_posix()
        if path.is_relative_to(top)
        else f"file://{quote(str(path))}"
    )


def is_there(path: str, top: Path) -> bool:
    """Whether a path under ``top`` or URI exists; one in a store is taken to.

    One that no file can have, or in a folder that may not be entered, does not.
    """
    place = locate(top, Location(path))
    try:
        return not place.is_local or Path(place.uri).exists()
    except OSError:
        return False


def whole(value: object) -> object:
    """A whole number as one: beside a missing cell pandas and Parquet keep it as 3.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def split_name(name: str) -> str:
    """``train``, ``val`` or ``test`` for their usual names; any other name as it is."""
    return SPLIT_NAMES.get(name.strip().lower(), name.strip())
