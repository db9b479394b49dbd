"""A study's data: manifests of the folds and of the tuning part, of real and of generated videos.

In: a task and the folder that holds the data sets. Out: a manifest for each part. People are
sorted by name and numbered from 0. Those whose number leaves 3 by 4 are the tuning people: rates
are chosen by their videos, they are trained on in every fold and validated in none. Of the others,
those whose number leaves f by the number of folds validate fold f, and all others train it. Where
clips are parted by themselves, each stands for a person, and they are sorted by class first.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from study_file import Study, Task
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video
from vcycle.datasets.index import index_videos
from vcycle.datasets.own_videos import list_folder
from vcycle.demo.videos import write_videos

_TUNING = 4
"""One in so many people, or of the generated training videos, is for choosing rates."""


def prepare_parts(study: Study, task: Task, datasets: Path, folder: Path) -> None:
    """Write the manifest of every part of a task's data set under ``folder``, once."""
    if all((folder / part / "manifest.csv").is_file() for part in _parts(study)):
        return
    if isinstance(task.videos, str):
        manifest = index_videos(list_folder(datasets / task.dataset), folder / "all").manifest
        for part in _parts(study):
            splits = real_splits(manifest, task.videos, part=part, folds=study.folds)
            _write(manifest, splits, folder / part)
        return
    for fold in range(study.folds):
        write_videos(
            folder / f"fold{fold}",
            train_videos=task.videos["train"],
            val_videos=task.videos["val"],
            seed=fold,
            num_workers=1,
        )
    manifest = Manifest.read(folder / "fold0").split("train")
    _write(manifest, class_splits(manifest), folder / "tuning")


def _parts(study: Study) -> list[str]:
    return [*(f"fold{fold}" for fold in range(study.folds)), "tuning"]


def person(path: str) -> str:
    """Whose clip a file is: its name up to the first underscore."""
    return Path(path).name.partition("_")[0]


def class_splits(manifest: Manifest) -> list[str]:
    """train or val for each video of a manifest: val for every fourth, class by class."""
    order = sorted(range(len(manifest)), key=lambda number: manifest.videos[number].labels)
    validates = set(order[_TUNING - 1 :: _TUNING])
    return ["val" if number in validates else "train" for number in range(len(manifest))]


def real_splits(
    manifest: Manifest, parted_by: Literal["people", "clips"], *, part: str, folds: int
) -> list[str]:
    """train or val for each video of a manifest, in the part ``tuning`` or ``fold<number>``.

    No person, or no clip, is on both sides; of clips, each class has about its share of each part.
    """

    def key(video: Video) -> tuple[Any, ...]:
        return (person(video.path),) if parted_by == "people" else (video.labels, video.path)

    numbers = {each: number for number, each in enumerate(sorted(set(map(key, manifest.videos))))}
    splits = []
    for video in manifest.videos:
        number = numbers[key(video)]
        is_tuning = number % _TUNING == _TUNING - 1
        validates = is_tuning if part == "tuning" else not is_tuning
        if part != "tuning":
            validates &= number % folds == int(part.removeprefix("fold"))
        splits.append("val" if validates else "train")
    return splits


def _write(manifest: Manifest, splits: list[str], folder: Path) -> None:
    """A copy of a manifest with other splits, its paths as URIs so that it may lie anywhere."""
    videos = tuple(
        replace(video, split=split, path=Path(manifest.locate(video).uri).absolute().as_uri())
        for video, split in zip(manifest.videos, splits, strict=True)
    )
    Manifest(folder, manifest.classes, videos).write()
