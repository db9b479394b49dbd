"""A list of videos for each split, as MMAction, PyTorchVideo and VideoMAE have them.

The lists go in, a ``Listing`` comes out. A line is a path, then the number or the name of its
class, each in quotes if need be; of a folder of frames the number of these may stand between. All
lines of a file are parted alike: by tabs, semicolons or commas, or else by spaces.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vcycle.data.decode.frame_folder import frame_files
from vcycle.data.manifest import check_class, check_path, locate, read_classes
from vcycle.data.metadata import Location, UnreadableVideo
from vcycle.data.tables import parse_lines, read_text
from vcycle.datasets.listing import (
    Entry,
    Listing,
    Missing,
    dataset_folder,
    is_there,
    local_path,
    make_listing,
    sorted_classes,
)
from vcycle.schedule.messages import counted, quoted

_MARKS = ("\t", ";", ",")
_QUOTED = re.compile(r'"(?:[^"]|"")+"')
_MOST_CLASSES = 1_000_000
_LINES_TRIED = 20
_FOLDERS_COUNTED = 20
_FIX_CLASSES = "give each class a line"
_FIX = "give a path and a class on each line"


class _Line(NamedTuple):
    """``frames`` is how many images of a folder are listed, if that is."""

    path: str
    label: str
    split: str
    exists: bool
    frames: int | None = None


def list_splits(
    root: str | os.PathLike[str],
    lists: Mapping[str, str | os.PathLike[str]],
    *,
    classes: str | os.PathLike[str] | None = None,
) -> Listing:
    """The videos of ``lists``, a file for each split. Paths are relative to ``root``, or absolute.

    ``classes`` is a file with the name of each class on a line, by number; without it numbers are
    their names. Videos on this machine that do not exist are missing. Raises ValueError, naming
    file and line, if a line is no path and class.
    """
    top = dataset_folder(root)
    lines = [line for split, file in lists.items() for line in _read(file, split, top)]
    if not lines:
        raise ValueError(f"{', '.join(map(str, lists.values()))}: list no video; {_FIX}")
    names = _by_number(lines) if classes is None else _named(classes)
    numbers = {name: number for number, name in enumerate(names)}
    found: list[Entry | Missing] = []
    for line in lines:
        number = numbers.get(line.label, int(line.label) if line.label.isdecimal() else -1)
        if not 0 <= number < len(names):
            raise ValueError(
                f"{lists[line.split]}: class {quoted(line.label)} of {line.path} is none of the "
                f"{len(names)} in {classes}; correct it"
            )
        entry = Entry(line.path, (number,), line.split) if line.exists else None
        found.append(entry or (line.path, line.split))
    times = Counter(line.path for line in lines)
    again = [path for path in times if times[path] > 1]
    notes = [f"{counted(len(again), 'video')} on several lines, such as {p}" for p in again[:1]]
    notes += _notes_on_frames(lines, top)
    return replace(make_listing(top, names, found), notes=tuple(notes))


def _notes_on_frames(lines: Sequence[_Line], top: Path) -> Iterable[str]:
    """A line if some of the folders hold another number of images than is listed."""
    folders = [line for line in lines if line.frames is not None]
    for line in folders[:: max(1, len(folders) // _FOLDERS_COUNTED)]:
        with suppress(UnreadableVideo):  # indexing tells of it
            held = len(frame_files(locate(top, Location(line.path)).uri))
            if held != line.frames:
                yield (
                    f"folders hold another number of images than is listed, such as {line.path} "
                    f"{held} and not {line.frames}: all of them are taken for its frames"
                )
                return


def _read(file: str | os.PathLike[str], split: str, top: Path) -> list[_Line]:
    texts = [text for text in read_text(file, fix=_FIX).split("\n") if text.strip()]
    marks = [mark for mark in _MARKS if all(mark in text for text in texts)] + [None]
    some = texts[:: max(1, len(texts) // _LINES_TRIED)]
    mark = max(marks, key=lambda each: _num_found(some, each, top))
    return parse_lines(file, partial(_line, mark=mark, split=split, top=top), fix=_FIX)


def _num_found(texts: Sequence[str], mark: str | None, top: Path) -> int:
    """How many videos are there if lines are parted so."""
    found = set()
    for text in texts:
        with suppress(ValueError):
            line = _line(text, mark=mark, split="", top=top)
            found |= {line.path} if line.exists else set()
    return len(found)


def _line(text: str, *, mark: str | None, split: str, top: Path) -> _Line:
    words, label = _parted(text, mark)
    label = _unquoted(label)
    check_class(label)
    (path, exists), frames = _found(words, top), None
    if not exists and len(words.split(mark)) > 1:
        before, number = _parted(words, mark)
        before, is_folder = _found(before, top)
        number = _unquoted(number)
        if number.isdecimal() and is_folder:
            if not Path(locate(top, Location(before)).uri).is_dir():
                raise ValueError(
                    f"{quoted(text)} names several classes, which `vcycle data index table` takes"
                )
            path, exists, frames = before, True, int(number)
    check_path(path)
    return _Line(path, label, split, exists, frames)


def _found(word: str, top: Path) -> tuple[str, bool]:
    """The path that a word names, and whether it is there: as it stands, else without quotes."""
    path = local_path(word, top)
    if is_there(path, top):
        return path, True
    if (bare := _unquoted(word)) == word:
        return path, False
    path = local_path(bare, top)
    return path, is_there(path, top)


def _unquoted(word: str) -> str:
    """A word in quotes, as tables write one with a mark in it, without them."""
    return word[1:-1].replace('""', '"') if _QUOTED.fullmatch(word) else word


def _parted(text: str, mark: str | None) -> tuple[str, str]:
    """All but the last word, which may be in quotes, and that."""
    text = text.strip()
    between = r"\s" if mark is None else rf"{re.escape(mark)}\s*"
    last = re.search(rf"{between}({_QUOTED.pattern})$", text)
    parts = [text[: last.start()], last[1]] if last else text.rsplit(mark, 1)
    if len(parts) < 2 or not all(part.strip() for part in parts):
        raise ValueError(f"{quoted(text)} is one word")
    return parts[0].strip(), parts[1].strip()


def _by_number(lines: Sequence[_Line]) -> tuple[str, ...]:
    """The names of all classes: their numbers, if these are what lines have."""
    numbered = [line for line in lines if line.label.isdecimal()]
    if not numbered:
        return sorted_classes(line.label for line in lines)
    if other := next((line for line in lines if not line.label.isdecimal()), None):
        raise ValueError(
            f"class {quoted(other.label)} of {other.path}: others have numbers; give a number, or "
            f"leave out the line if it is a header"
        )
    most = max(int(line.label) for line in numbered)
    if most >= _MOST_CLASSES:
        raise ValueError(
            f"class {most}: numbers of classes go up to {_MOST_CLASSES - 1:,}; give others"
        )
    return tuple(map(str, range(most + 1)))


def _named(file: str | os.PathLike[str]) -> tuple[str, ...]:
    names = tuple(map(_unquoted, read_classes(Path(file), fix=_FIX_CLASSES)))
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{file}: names class {quoted(name)} {times} times; {_FIX_CLASSES}")
    return names
