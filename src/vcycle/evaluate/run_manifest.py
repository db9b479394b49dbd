"""The manifest that a run began with, which its folder keeps.

In: a run folder, and where the run's manifest is. Out: what that listed when the run began, however
the folder of the videos has been indexed since.
"""

from __future__ import annotations

import filecmp
from dataclasses import replace
from pathlib import Path

from vcycle.config.fields import read_saved
from vcycle.data.manifest import Manifest

RUN_MANIFEST = "manifest"
CHECKPOINTS = "checkpoints"
"""Folders in a run folder."""


def run_of(path: Path) -> Path | None:
    """The run folder that ``path`` is, or that it is a checkpoint of; None if there is none."""
    path = path.absolute()
    places = [path] if path.is_dir() else [path.parent]
    if places[0].name == CHECKPOINTS:
        places.append(places[0].parent)
    return next((each for each in places if (each / "config.yaml").is_file()), None)


def kept_manifest(run: Path, place: str) -> Manifest | None:
    """What ``run`` began with; None if it keeps nothing, or began with a manifest elsewhere.

    Its root is still the folder of the manifest in ``place``. Raises ValueError if it is damaged.
    """
    folder = _kept_folder(run, place)
    return None if folder is None else replace(Manifest.read(folder), root=_root(place))


def has_other_videos(run: Path, place: str) -> bool:
    """Whether the manifest in ``place`` lists other videos than ``run`` began with, or none."""
    folder = _kept_folder(run, place)
    if folder is None:
        return False
    names = ["manifest.csv", "classes.txt"]
    same, _, _ = filecmp.cmpfiles(_root(place), folder, names, shallow=False)
    if same == names:
        return False
    try:
        one, other = Manifest.read(place), Manifest.read(folder)
    except ValueError:
        return True
    return (one.classes, one.videos) != (other.classes, other.videos)


def is_of_another_folder(run: Path, place: str) -> bool:
    """Whether ``run`` began with a manifest elsewhere that is still there, and was not moved."""
    began_with = _began_with(run)
    if began_with is None or began_with == place:
        return False
    before = _root(began_with)
    return before.exists() and before.resolve() != _root(place).resolve()


def _began_with(run: Path) -> str | None:
    """Where the manifest of a run is, as its configuration says."""
    try:
        place = read_saved(run / "config.yaml")["data"]["manifest"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return place if isinstance(place, str) and place else None


def _kept_folder(run: Path, place: str) -> Path | None:
    folder = run / RUN_MANIFEST
    same = _began_with(run) == place
    return folder if same and (folder / "manifest.csv").is_file() else None


def _root(place: str) -> Path:
    """The folder of a manifest, given that or its file, though they may be gone."""
    path = Path(place)
    return path.parent if path.is_file() or path.name == "manifest.csv" else path
