"""A folder for each class: the form in which most people keep videos of their own.

A folder goes in, a ``Listing`` comes out. The folders' names are the classes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from vcycle.data.tables import quoted
from vcycle.datasets.folders import plain_name, videos_under
from vcycle.datasets.listing import SPLIT_NAMES, Entry, Listing, dataset_folder


def list_folder(root: str | os.PathLike[str], *, val_share: float = 0.1) -> Listing:
    """A folder for each class, under ``train``, ``val`` and ``test`` folders if there are any.

    Without those, ``val_share`` of the videos are for validation, chosen by a hash of their names.
    Raises ValueError if no folder of a class holds a video, or if only some are under a split.
    """
    if not 0 <= val_share <= 1:
        raise ValueError(f"val_share {val_share}: use a share from 0 to 1")
    top = dataset_folder(root)
    tops = _folders_in(top, top)
    splits = [(SPLIT_NAMES[d.name.lower()], d) for d in tops if d.name.lower() in SPLIT_NAMES]
    for other in tops if splits else ():
        if other.name.lower() not in SPLIT_NAMES and videos_under(other):
            raise ValueError(
                f"{top}: holds {quoted(splits[0][1].name)}, a split, and {quoted(other.name)}, "
                f"which is not; put all classes under train, val and test folders, or none"
            )
    class_folders = [
        (split, folder, plain_name(folder, parent))
        for split, parent in splits or [("", top)]
        for folder in _folders_in(parent, top)
    ]
    classes = sorted({label for _, _, label in class_folders})
    entries = []
    for split, folder, label in class_folders:
        for path in videos_under(folder):
            name = plain_name(path, top)
            chosen = split or ("val" if _share(name) < val_share else "train")
            entries.append(Entry(name, (classes.index(label),), chosen))
    if not entries:
        raise ValueError(f"{top}: no folder in it holds a video; put each class in its own folder")
    return Listing(top, tuple(classes), tuple(entries))


def _folders_in(parent: Path, top: Path) -> list[Path]:
    """The folders in a folder, without links to ``top`` or a folder above it."""
    real_top = top.resolve()
    return [
        folder
        for folder in sorted(parent.iterdir())
        if folder.is_dir() and not real_top.is_relative_to(folder.resolve())
    ]


def _share(name: str) -> float:
    """A number in [0, 1) that depends on the name alone."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "big") / 2**48
