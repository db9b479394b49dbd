"""Folds by person: nobody trains and validates at once, and tuning sees no one who validates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from study_data import class_splits, person, prepare_parts, real_splits
from study_file import Study, Task, read_study
from tests.encode import encode, numbered_frames
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video

PROOF = Path(__file__).parents[2] / "benchmarks" / "study" / "proof.yaml"
FACTS = {"num_frames": 8, "frame_rate": 10, "duration_seconds": 0.8, "width": 32, "height": 32}


def manifest_of(num_people: int) -> Manifest:
    videos = tuple(
        Video(path=f"c{label}/p{number:03}_{label}.mp4", labels=(label,), split="", **FACTS)
        for label in range(2)
        for number in range(num_people)
    )
    return Manifest(Path("videos"), ("a", "b"), videos)


@pytest.mark.parametrize("num_people", [9, 26])
def test_parts_of_people(num_people):
    manifest = manifest_of(num_people)
    parts = ["tuning", "fold0", "fold1", "fold2"]
    validated = {}
    for part in parts:
        splits = real_splits(manifest, "people", part=part, folds=3)
        people = {"train": set(), "val": set()}
        for video, split in zip(manifest.videos, splits, strict=True):
            people[split].add(person(video.path))
        assert people["train"].isdisjoint(people["val"])
        assert len(people["train"] | people["val"]) == num_people
        validated[part] = people["val"]
    everyone = {person(video.path) for video in manifest.videos}
    assert sum(len(each) for each in validated.values()) == num_people  # each of them once
    assert set.union(*validated.values()) == everyone
    sizes = [len(each) for each in validated.values()]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("counts", [(9, 9), (40, 8), (5, 30)])
def test_parts_of_clips(counts):
    """Each clip validates once, and every class in every part, whatever the files' order."""
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    videos = tuple(
        Video(path=f"{number * 7919 % 100:03}.mp4", labels=(label,), split="", **FACTS)
        for number, label in enumerate(labels)
    )
    manifest = Manifest(Path("videos"), ("a", "b"), videos)
    validated = []
    for part in ("tuning", "fold0", "fold1", "fold2"):
        splits = real_splits(manifest, "clips", part=part, folds=3)
        own = [number for number, split in enumerate(splits) if split == "val"]
        assert set(splits) == {"train", "val"}
        for label, count in enumerate(counts):
            assert abs(sum(labels[number] == label for number in own) - count / 4) <= 1.5
        validated += own
    assert sorted(validated) == list(range(len(videos)))


def test_parts_of_a_folder_of_clips_are_written_once(tmp_path):
    """They may lie anywhere, and keep files and labels."""
    study = read_study(PROOF)
    task = Task("clips", "scratch", "people", {"baseline": {1: 1}})
    for name in ("ann", "bob", "cem", "dan"):
        for label in ("left", "right"):
            (tmp_path / "sets" / "clips" / label).mkdir(parents=True, exist_ok=True)
            encode(
                tmp_path / "sets" / "clips" / label / f"{name}_1.mp4", numbered_frames(4, 32, 32)
            )
    folder = tmp_path / "parts"
    prepare_parts(study, task, tmp_path / "sets", folder)
    parts = {part: Manifest.read(folder / part) for part in ("tuning", "fold0", "fold1", "fold2")}
    for number, part in enumerate(("fold0", "fold1", "fold2", "tuning")):
        validated = {person(video.path) for video in parts[part].split("val").videos}
        assert validated == {("ann", "bob", "cem", "dan")[number]}
        assert all(Path(parts[part].locate(video).uri).is_file() for video in parts[part].videos)
        assert parts[part].classes == ("left", "right")
    prepare_parts(study, task, Path("nowhere"), folder)


def test_every_class_is_trained_and_validated_in_tuning():
    """Whatever the order of the videos: here their classes come in turn."""
    videos = tuple(
        Video(path=f"{number}.mp4", labels=(number % 12,), split="train", **FACTS)
        for number in range(400)
    )
    splits = class_splits(Manifest(Path("videos"), tuple("abcdefghijkl"), videos))
    for split, fewest in (("train", 24), ("val", 8)):
        labels = [v.labels[0] for v, own in zip(videos, splits, strict=True) if own == split]
        assert {labels.count(label) for label in range(12)} <= set(range(fewest, fewest + 3))


def test_parts_of_generated_videos_share_none(tmp_path):
    study: Study = replace(read_study(PROOF), folds=2)
    task = Task("generated", "scratch", {"train": 8, "val": 4}, {"baseline": {1: 1}})
    prepare_parts(study, task, tmp_path, tmp_path / "parts")
    tuning, first = (Manifest.read(tmp_path / "parts" / part) for part in ("tuning", "fold0"))
    files = {
        split: {tuning.locate(v) for v in tuning.split(split).videos} for split in ("train", "val")
    }
    assert (len(files["train"]), len(files["val"])) == (6, 2)
    assert files["train"].isdisjoint(files["val"])
    of_fold = {first.locate(video).uri for video in first.split("train").videos}
    assert {place.uri for place in files["train"] | files["val"]} == {
        str(Path(uri).absolute()) for uri in of_fold
    }
