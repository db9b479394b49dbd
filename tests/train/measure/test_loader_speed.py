"""How long clips take to decode, measured before a run."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lightning_fabric import Fabric
from rich.console import Console

from vcycle.config.run import RunConfig
from vcycle.data import dataset as dataset_module
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.kept import KeptFrames
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location
from vcycle.data.request import ClipRequest
from vcycle.evaluate.loaders import make_dataset
from vcycle.schedule.shape import Shape
from vcycle.train.activity import Activity
from vcycle.train.measure.loader_speed import decode_seconds, for_timing


def test_a_short_run_decodes_an_eighth_of_its_clips_before(
    config: RunConfig, synthetic_videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or four, of each shape, and as many once more, of the first, for what only those take."""
    read, seen = ClipDataset.read, Counter[Shape]()

    def counted(dataset: ClipDataset, request: ClipRequest, *rest: object, **more: object):  # type: ignore[no-untyped-def]
        seen[request.shape] += 1
        return read(dataset, request, *rest, **more)

    monkeypatch.setattr(ClipDataset, "read", counted)
    plan, videos = config.plan(), Manifest.read(synthetic_videos).split("train")
    dataset = make_dataset(config, videos)
    fabric = Fabric(accelerator="cpu", devices=1)
    with Activity(Console(file=io.StringIO())) as activity:
        found = decode_seconds(config, dataset, fabric, activity=activity)
    assert set(found) == set(plan.shapes)
    assert min(found.values()) > 0
    drawn = Counter[Shape]()
    for kind in plan.mini_batches():
        drawn[kind.shape] += kind.steps * kind.batch_size
    seen[plan.shapes[0]] -= 4
    for shape in plan.shapes:
        assert 4 <= seen[shape] < drawn[shape] / 8 + 4


def test_kept_frames_are_timed_without_their_decoding(
    config: RunConfig, synthetic_videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of few videos, which workers soon have: of all videos, most would be decoded meanwhile."""
    videos = Manifest.read(synthetic_videos).split("train")
    of_files, held = make_dataset(config, videos), KeptFrames(2**30)
    assert for_timing(of_files, seed=0) is of_files
    few = for_timing(replace(of_files, kept=held), seed=0)
    names = {video.path for video in few.manifest.videos}
    assert len(names) == len(few) == 4
    assert names <= {video.path for video in videos.videos}
    assert few.kept is held

    decode, decoded = dataset_module.stored_frames, []

    def counted(place: Location, *given: Any, **more: Any) -> Iterator[Any]:
        decoded.append(place.uri)
        return decode(place, *given, **more)

    monkeypatch.setattr(dataset_module, "stored_frames", counted)
    fabric = Fabric(accelerator="cpu", devices=1)
    with Activity(Console(file=io.StringIO())) as activity:
        found = decode_seconds(config, few, fabric, activity=activity)
        alone = config.plan().shapes[:1]
        one = decode_seconds(config, few, fabric, activity=activity, shapes=alone)
    assert set(found) == set(config.plan().shapes)
    assert set(one) == set(alone)
    assert len(decoded) == len(set(decoded)) == 4
