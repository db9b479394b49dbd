"""A list of videos for each split, as MMAction, PyTorchVideo and VideoMAE have them.

The lists go in, a ``Listing`` comes out. A line is a path, then the number or the name of its
class; of a folder of frames the number of these may stand between. Spaces, a tab, a comma or a
semicolon part them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vcycle.data.manifest import check_class, check_path, locate
from vcycle.data.metadata import Location
from vcycle.data.tables import parse_lines, quoted, read_text
from vcycle.datasets.listing import (
    Entry,
    Listing,
    Missing,
    dataset_folder,
    local_path,
    make_listing,
    sorted_classes,
)

_LAST = re.compile(r"(.+?)[ \t]*[ \t,;][ \t]*([^\s,;]+)")
"""All but the last word, and that."""
_MOST_CLASSES = 1_000_000
_FIX = "give a path and a class on each line"


class _Line(NamedTuple):
    path: str
    label: str
    split: str
    is_there: bool


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
    lines = [
        line
        for split, file in lists.items()
        for line in parse_lines(file, partial(_line, split=split, top=top), fix=_FIX)
    ]
    if not lines:
        raise ValueError(f"{', '.join(map(str, lists.values()))}: list no video; {_FIX}")
    names = _names(lines, classes)
    numbers = {name: number for number, name in enumerate(names)}
    found: list[Entry | Missing] = []
    for line in lines:
        if not line.is_there:
            found.append((line.path, line.split))
            continue
        by_number = classes is not None and line.label.isdecimal() and line.label not in numbers
        label = int(line.label) if by_number else numbers.get(line.label, len(names))
        if label >= len(names):
            raise ValueError(
                f"{lists[line.split]}: class {quoted(line.label)} of {line.path} is none of the "
                f"{len(names)} in {classes}; correct it"
            )
        found.append(Entry(line.path, (label,), line.split))
    return make_listing(top, names, found)


def _line(text: str, *, split: str, top: Path) -> _Line:
    parts = _LAST.fullmatch(text.strip())
    if parts is None:
        raise ValueError(f"{quoted(text)} is one word")
    path, label = parts.groups()
    check_class(label)
    counted = _LAST.fullmatch(path)
    if not _is_there(path, top) and counted and counted[2].isdecimal():
        path = counted[1]  # a folder of so many frames
    path = local_path(path, top)
    check_path(path)
    return _Line(path, label, split, _is_there(path, top))


def _is_there(path: str, top: Path) -> bool:
    place = locate(top, Location(local_path(path, top)))
    return not place.is_local or Path(place.uri).exists()


def _names(lines: list[_Line], classes: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Of all classes, by number."""
    if classes is not None:
        names = [line.strip() for line in read_text(classes, fix=_FIX).splitlines()]
        return tuple(name for name in names if name)
    labels = sorted_classes(line.label for line in lines)
    if not all(label.isdecimal() for label in labels):
        return labels
    if int(labels[-1]) >= _MOST_CLASSES:
        raise ValueError(
            f"class {labels[-1]}: numbers of classes go up to {_MOST_CLASSES - 1:,}; give others"
        )
    return tuple(str(number) for number in range(int(labels[-1]) + 1))
