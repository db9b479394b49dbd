"""A folder for each class: the form in which most people keep videos of their own.

A folder goes in, a ``Listing`` comes out. The folders' names are the classes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from vcycle.datasets.folders import (
    READ_SUFFIXES,
    VIDEO_SUFFIXES,
    is_hidden,
    is_prepared,
    plain_name,
    unread_under,
    videos_under,
)
from vcycle.datasets.listing import SPLIT_NAMES, Entry, Listing, sorted_classes
from vcycle.datasets.splits import Splitting
from vcycle.schedule.messages import counted, quoted


def list_class_folders(top: Path, splitting: Splitting) -> Listing:
    """A folder for each class, under ``train``, ``val`` and ``test`` folders if there are any.

    Without those, ``splitting`` divides the videos. The listing is empty if no folder of a class
    holds a video. Raises ValueError if only some classes are under a split, or splits are under
    classes.
    """
    tops = _folders_in(top, top)
    splits = [(SPLIT_NAMES[d.name.lower()], d) for d in tops if d.name.lower() in SPLIT_NAMES]
    for other in tops if splits else ():
        if other.name.lower() not in SPLIT_NAMES and videos_under(other):
            raise ValueError(
                f"{top}: holds {quoted(splits[0][1].name)}, a split, and {quoted(other.name)}, "
                f"which is not; put all classes under train, val and test folders, or none; rename "
                f"the folder of a class that is called so"
            )
    found = [
        (split, plain_name(folder, parent), plain_name(path, top))
        for split, parent in splits or [("", top)]
        for folder in _folders_in(parent, top)
        for path in videos_under(folder)
    ]
    classes = sorted_classes(name for _, name, _ in found)
    numbers = {name: label for label, name in enumerate(classes)}
    labels = [(numbers[name],) for _, name, _ in found]
    paths = [path for _, _, path in found]
    parents = [folder for _, folder in splits] or [top]
    others, empty = _without_videos(top, parents)
    left_out = (*_left_out(others, "folder", "without a video", top), *_unread(top, parents))
    notes = (*_strays(top, parents), *left_out)
    notes += (READ_SUFFIXES,) if left_out else ()
    notes += _left_out(empty, "folder", "without a file", top)
    notes += _linked(top, paths)
    if not splits:
        notes += _notes_on_splits_within(top, classes, paths)
    given, why = [split for split, _, _ in found], "the videos are in folders of splits"
    chosen, more = splitting.with_val(given, paths, labels, reason=why)
    entries = tuple(
        Entry(path, label, split, group=group)
        for path, label, (split, group) in zip(paths, labels, chosen, strict=True)
    )
    return Listing(top, classes, entries, notes=notes + more)


def _notes_on_splits_within(
    top: Path, classes: Sequence[str], paths: Sequence[str]
) -> tuple[str, ...]:
    """A note if some videos are in several splits' folders within those of classes, and are mixed.

    Raises ValueError if all are.
    """
    within = [
        (SPLIT_NAMES[parts[1].lower()], path)
        for path in paths
        if len(parts := PurePosixPath(path).parts) > 2 and parts[1].lower() in SPLIT_NAMES
    ]
    if len({split for split, _ in within}) < 2:
        return ()
    split, path = within[0]
    name = PurePosixPath(path).parts[0]
    said = f"splits in the folders of classes, such as {path}"
    if len(within) < len(paths):
        return (f"{said}, are mixed; to keep them, put the folders of classes in those of splits",)
    or_below = f", or give {top / name}" if len(classes) == 1 else ""
    raise ValueError(
        f"{top}: holds {said}; put the folders of classes in those of splits, as in "
        f"{split}/{name}{or_below}"
    )


def _linked(top: Path, paths: list[str]) -> tuple[str, ...]:
    """A note on files that links list more than once, perhaps in several classes."""
    folders = {parent for path in paths for parent in PurePosixPath(path).parents}
    if not any((top / each).is_symlink() for each in {*map(str, folders), *paths}):
        return ()
    names: dict[str, str] = {}
    files = ((p, os.path.realpath(top / p)) for p in paths)  # of a circle of links, itself
    again = [(p, first) for p, file in files if (first := names.setdefault(file, p)) != p]
    if not again:
        return ()
    path, first = again[0]
    return (
        f"{counted(len(again), 'video')} listed again by a link, such as {path}, which is {first}; "
        f"remove the link unless both labels are meant",
    )


def _strays(top: Path, parents: list[Path]) -> tuple[str, ...]:
    """A note on videos that lie beside the folders of classes."""
    strays = [
        path
        for parent in parents
        for path in parent.iterdir()
        if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file() and not is_hidden(path.name)
    ]
    return _left_out(strays, "video", "in no folder of a class", top)


def _without_videos(top: Path, parents: list[Path]) -> tuple[list[Path], list[Path]]:
    """Folders that hold files, of which none is a video, and those that hold no file."""
    others: list[Path] = []
    empty: list[Path] = []
    for folder in (folder for parent in parents for folder in _folders_in(parent, top)):
        if not videos_under(folder):
            holds = any(file.is_file() for file in folder.rglob("*"))
            (others if holds else empty).append(folder)
    return others, empty


def _unread(top: Path, parents: list[Path]) -> tuple[str, ...]:
    """A note on videos and images of kinds that are not read."""
    files = [
        file
        for parent in parents
        for folder in _folders_in(parent, top)
        for file in unread_under(folder)
    ]
    return _left_out(files, "file", "of other kinds", top)


def _left_out(paths: list[Path], noun: str, kind: str, top: Path) -> tuple[str, ...]:
    """A note on paths, if there are any."""
    if not paths:
        return ()
    return (f"{counted(len(paths), noun)} {kind} left out, such as {plain_name(min(paths), top)}",)


def _folders_in(parent: Path, top: Path) -> list[Path]:
    """The folders in a folder, without hidden ones and links to ``top`` or a folder above it."""
    real_top = top.resolve()
    return [
        folder
        for folder in sorted(parent.iterdir())
        if folder.is_dir()
        and not is_hidden(folder.name)
        and not is_prepared(folder)  # copies of these videos
        and not real_top.is_relative_to(folder.resolve())
    ]
