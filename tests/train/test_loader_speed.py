"""How long clips take to decode, measured before a run."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from lightning_fabric import Fabric
from rich.console import Console

from vcycle.config.run import RunConfig
from vcycle.data import dataset as dataset_module
from vcycle.data.dataset import ClipDataset
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location
from vcycle.data.request import ClipRequest
from vcycle.schedule.shape import Shape
from vcycle.train.activity import Activity
from vcycle.train.loader_speed import decode_seconds


def test_a_short_run_decodes_an_eighth_of_its_clips_before(
    config: RunConfig, synthetic_videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or four, of each shape, and as many once more, of the first, for what only those take."""
    read, seen = ClipDataset.read, Counter[Shape]()

    def counted(dataset: ClipDataset, request: ClipRequest, *rest: object, **more: object):  # type: ignore[no-untyped-def]
        seen[request.shape] += 1
        return read(dataset, request, *rest, **more)

    monkeypatch.setattr(ClipDataset, "read", counted)
    config = replace(config, data=replace(config.data, kept_gib=0.0))
    plan, videos = config.plan(), Manifest.read(synthetic_videos).split("train")
    fabric = Fabric(accelerator="cpu", devices=1)
    with Activity(Console(file=io.StringIO())) as activity:
        found = decode_seconds(config, plan, videos, fabric, activity=activity)
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
    """Each video that is timed was read before, and is decoded once."""
    timed: list[int] = []
    decoded: list[str] = []
    read, decode = ClipDataset.read, dataset_module.stored_frames

    def noted(dataset: ClipDataset, request: ClipRequest, *rest: object, **more: object):  # type: ignore[no-untyped-def]
        timed.append(request.index)
        return read(dataset, request, *rest, **more)

    def counted(place: Location, *rest: object, **more: object):  # type: ignore[no-untyped-def]
        decoded.append(place.uri)
        return decode(place, *rest, **more)

    monkeypatch.setattr(ClipDataset, "read", noted)
    monkeypatch.setattr(dataset_module, "stored_frames", counted)
    videos = Manifest.read(synthetic_videos).split("train")
    fabric = Fabric(accelerator="cpu", devices=1)
    with Activity(Console(file=io.StringIO())) as activity:
        decode_seconds(config, config.plan(), videos, fabric, activity=activity)
    assert len(set(timed)) == len(decoded) == 4
    assert set(timed[32:]) == set(timed[:32])
