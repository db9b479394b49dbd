"""How long clips take to decode, measured before a run."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import pytest
from lightning_fabric import Fabric
from rich.console import Console

from vcycle.config.run import RunConfig
from vcycle.data.dataset import ClipDataset
from vcycle.data.manifest import Manifest
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
