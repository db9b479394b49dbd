"""A folder of videos, a table or a manifest that a user names: its manifest, and what fits it.

In: a path. Out: the folder of its manifest, indexed if it has to be, with a report of what was
found.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rich.console import Console

from vcycle.cli.launched import is_one_of_several
from vcycle.cli.waiting import starting_pytorch
from vcycle.data.atomic import is_writable
from vcycle.data.manifest import Manifest
from vcycle.datasets.choices import Choices
from vcycle.datasets.folders import plain_path
from vcycle.devices.cores import process_cores
from vcycle.schedule.messages import counted
from vcycle.train.activity import progress_bar


def manifest_of(path: Path, chosen: Choices = Choices()) -> Path:
    """The folder of the manifest of what the user named, made or brought up to date.

    A folder is indexed again only if its manifest was made from it, not from a table or a
    dataset's own lists; a read-only one that its owner indexed, only if something else is chosen.
    Videos are probed that are new or changed. Prints what was found. Raises ValueError if there is
    no such thing, or it holds no videos.
    """
    if not path.exists():
        raise ValueError(f"{path}: no such file or folder, and no recipe either")
    with starting_pytorch():
        from vcycle.datasets.index import JOURNAL
        from vcycle.datasets.journal import JournalInUse, wait_for_others
        from vcycle.datasets.mirroring import mirroring_of
        from vcycle.datasets.own_videos import index_own_videos

    path = plain_path(path)
    folder = path if path.is_dir() else path.parent
    earlier = Choices.read(folder) if _has_manifest(folder) else Choices()
    is_given = path.name == "manifest.csv" or (_has_manifest(path) and earlier.source != ".")
    if is_one_of_several():
        place = folder if is_given else _made_before(path, folder)
        kept = Choices.read(place).given
        for flag, value in chosen.given.items():
            if kept.get(flag) != value:
                raise ValueError(
                    f"{flag}: several processes cannot index {path} again; run `vcycle data index` "
                    f"with it first"
                )
        return place
    if is_given:
        for flag in chosen.given:
            raise ValueError(f"{flag}: {folder} has its manifest; index its videos again with it")
    out = folder if is_given else _place_of_manifest(path)
    is_of_owner = out != folder and not _has_manifest(out) and _is_of(path, folder)
    if is_given or (is_of_owner and not chosen.given):
        manifest = Manifest.read(folder)
        print(
            f"{counted(len(manifest), 'video')} of {counted(manifest.num_classes, 'class')} in "
            f"{folder}"
        )
        if note := mirroring_of(manifest):
            print(note)
        return folder
    if is_of_owner:
        chosen = chosen.with_earlier(earlier)
    if not is_writable(folder):
        print(f"{path} is read-only: its manifest goes to {out}")
    print(f"indexing {path}", flush=True)
    while True:
        wait_for_others(out / JOURNAL)
        try:
            with progress_bar("probing videos", Console()) as progress:
                indexed = index_own_videos(
                    path, out, chosen, num_workers=process_cores(), progress=progress
                )
            break
        except JournalInUse:  # which began in between, and may choose another split
            continue
    print(indexed)
    print(indexed.report(), flush=True)
    return indexed.manifest.root


def short_name(path: Path) -> str:
    """Of a dataset, for its run folders."""
    path = plain_path(path)
    named = path.parent if path.name in ("manifest.csv", "metadata.csv") else path
    return (named.name if named.is_dir() else named.stem) or "videos"


def _has_manifest(folder: Path) -> bool:
    return (folder / "manifest.csv").is_file() and (folder / "classes.txt").is_file()


def _place_of_manifest(path: Path) -> Path:
    """Beside the videos, or if that is read-only a hidden folder under ``runs``, one a path.

    Among the user's caches if nothing can be written there either.
    """
    beside = path if path.is_dir() else path.parent
    if is_writable(beside):
        return beside
    number = hashlib.sha256(os.fsencode(plain_path(path))).hexdigest()[:8]
    here = Path("runs") if Path("runs").is_dir() else Path()
    name = f"{short_name(path)}-{number}"
    if is_writable(here):
        return Path("runs").absolute() / ".manifests" / name
    from vcycle.data.cache import cache_folder

    try:
        return cache_folder() / name
    except RuntimeError:
        raise ValueError(
            f"{path}: it is read-only, and so is this folder; start the command in another"
        ) from None


def _is_of(path: Path, folder: Path) -> bool:
    """Whether a folder has a manifest of the path, which is the folder or a table in it."""
    if not _has_manifest(folder):
        return False
    return path == folder or Choices.read(folder).source == path.name


def _made_before(path: Path, folder: Path) -> Path:
    """The folder of the manifest that one process made for several."""
    out = _place_of_manifest(path)
    if out != folder and _has_manifest(out):
        return out
    if _is_of(path, folder):
        return folder
    raise ValueError(f"{path}: several processes cannot index it; run `vcycle data index` first")
