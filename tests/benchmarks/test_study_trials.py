"""Trials: each changes what it says of a run, and nothing once it is over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from study_file import read_study
from study_runs import StudyFolder, run_study
from study_trials import Trial, during, low_frequencies
from tests.benchmarks.test_study_runs import STUDY as SMALL
from vcycle.config.recipes import recipe
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange, draw_grid
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import VideoInfo
from vcycle.data.request import ClipRequest
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape

STUDY = {
    "folds": 1,
    "rates": [0.001],
    "config": SMALL["config"],
    "methods": {
        name: {
            "title": name,
            "schedule": "anneal",
            "unit": "steps",
            "rate_of": None if name == "anneal" else "anneal",
            "trial": None if name == "anneal" else name,
        }
        for name in ("anneal", "phase-warmup", "low-frequency")
    },
    "tasks": [
        {
            "dataset": "generated",
            "regime": "scratch",
            "videos": {"train": 8, "val": 4},
            "methods": {name: {1: 1} for name in ("anneal", "phase-warmup", "low-frequency")},
        }
    ],
}
SILENT = Console(quiet=True)
RANGE = GridRange(Shape(8, 64, 64), 2, (73, 97))


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """The steps of each method of a small study, in which plain runs come last."""
    file = tmp_path_factory.mktemp("study") / "small.yaml"
    file.write_text(yaml.safe_dump(STUDY, sort_keys=False))
    study = read_study(file)
    folder = StudyFolder(study, file.parent, Path("nowhere"))
    finals = [run for run in study.runs() if run.role == "final"]
    run_study(
        folder, [*study.tuning(finals[0].task, study.baseline, 1), *finals[::-1]], console=SILENT
    )
    rows = {}
    for run in finals:
        lines = (folder.run_folder(run) / "metrics.jsonl").read_text().splitlines()
        rows[run.method.name] = [json.loads(line) for line in lines]
    return rows


@pytest.fixture
def dataset(synthetic_videos: Path) -> ClipDataset:
    return ClipDataset(Manifest.read(synthetic_videos).split("train"), RANGE)


def plan() -> Plan:
    config = recipe("demo")
    multigrid = replace(config.multigrid.with_schedule("anneal"), steps=400)
    return replace(config, multigrid=multigrid).plan()


def test_a_study_carries_out_a_method_in_its_trial(metrics):
    plain, warmed = metrics["anneal"], metrics["phase-warmup"]
    rates = [
        (step["learning_rate"], other["learning_rate"])
        for step, other in zip(plain, warmed, strict=True)
    ]
    firsts = [i for i in range(1, 6) if plain[i]["shape"] != plain[i - 1]["shape"]]
    assert len(firsts) == 2
    for i, (rate, other) in enumerate(rates):
        assert other == pytest.approx(0.1 * rate if i in firsts else rate)
    assert warmed[-1]["loss"] != plain[-1]["loss"]

    blurred = metrics["low-frequency"]
    assert [step["shape"] for step in blurred] == [step["shape"] for step in plain]
    assert [step["learning_rate"] for step in blurred] == [step["learning_rate"] for step in plain]
    assert blurred[0]["loss"] != plain[0]["loss"]


def test_a_warm_up_begins_each_phase_after_the_first():
    scheduled, plain = plan(), list(plan())
    with during("phase-warmup"):
        steps = list(scheduled)
    assert list(plan()) == plain
    assert [phase.steps for phase in scheduled.phases] == [180, 120, 100]
    shares = [
        step.learning_rate / other.learning_rate
        for step, other in zip(steps[20:], plain[20:], strict=True)
    ]
    assert shares[:160] == [1] * 160
    assert shares[160:280] == pytest.approx([0.1, 0.25, 0.4, 0.55, 0.7, 0.85] + [1] * 114)
    assert shares[280:] == pytest.approx([0.1, 0.28, 0.46, 0.64, 0.82] + [1] * 95)
    assert [replace(step, learning_rate=0) for step in steps] == [
        replace(step, learning_rate=0) for step in plain
    ]


def test_a_coarse_clip_is_the_low_frequencies_of_the_full_one(dataset):
    coarse, full = (ClipRequest(3, Shape(2, side, side), seed=5) for side in (32, 64))
    plain, whole = dataset[coarse].pixels, dataset[full].pixels
    with during("low-frequency"):
        clip = dataset[coarse]
        out = torch.empty(coarse.clip_shape, dtype=torch.uint8)
        assert dataset.read(coarse, out=out).pixels is out
        assert torch.equal(dataset[full].pixels, whole)
    assert torch.equal(clip.pixels, low_frequencies(whole, height=32, width=32))
    assert torch.equal(out, clip.pixels)
    assert clip.request == coarse
    assert not torch.equal(clip.pixels, plain)
    assert torch.equal(dataset[coarse].pixels, plain)


def test_low_frequencies_are_kept_and_high_ones_dropped():
    """Of two waves along the width, the one that 10 pixels can hold comes out at 10 pixels."""

    def waves(num_pixels: int, *cycles: int) -> torch.Tensor:
        x = torch.arange(num_pixels) / num_pixels
        row = 120 + sum(40 * torch.cos(2 * torch.pi * count * x) for count in cycles)
        return row.round().to(torch.uint8).expand(2, 12, -1)[..., None].repeat(1, 1, 1, 3)

    found = low_frequencies(waves(24, 3, 9), height=7, width=10)
    assert found.shape == (2, 7, 10, 3)
    difference = found.int() - waves(10, 3)[:, :7].int()
    assert difference.abs().max() <= 1
    bright = torch.full((1, 24, 24, 3), 255, dtype=torch.uint8)
    bright[:, :12] = 0
    ringing = low_frequencies(bright, height=12, width=12)
    assert (ringing.min(), ringing.max()) == (0, 255)


def test_clips_of_fewer_frames_may_have_one_stride():
    assert RANGE.strides(2) == (2, 8)
    with during("base-stride"):
        assert [RANGE.strides(frames) for frames in (2, 4, 8)] == [(2, 2)] * 3
    with during("same-span"):
        assert [RANGE.strides(frames) for frames in (2, 4, 8)] == [(8, 8), (4, 4), (2, 2)]
    assert RANGE.strides(2) == (2, 8)


def test_coarse_clips_may_span_as_much_of_time_and_space():
    full, half = RANGE.base, replace(RANGE.base, height=RANGE.base.height // 2)
    half = replace(half, width=RANGE.base.width // 2, frames=2)
    low, high = RANGE.short_side
    info = VideoInfo(
        num_frames=99, frame_rate=25.0, duration_seconds=99 / 25, width=320, height=240
    )

    def span(shape: Shape, seed: int) -> tuple[int, int, int]:
        grid = draw_grid(info, shape, RANGE, rng=np.random.default_rng(seed), flip=True)
        stride = grid.frames[1] - grid.frames[0]
        return grid.box.height, grid.box.width, stride * shape.frames

    with during("same-view"):
        assert RANGE.short_sides(half) == (low / 2, high / 2)
        assert RANGE.short_sides(full) == (low, high)
        assert RANGE.strides(2) == (8, 8)
        spans = [(span(half, seed), span(full, seed)) for seed in range(20)]
    assert all(few == whole for few, whole in spans)
    with during("same-crop"):
        assert RANGE.short_sides(half) == (low / 2, high / 2)
        assert RANGE.strides(2) == (2, 8)
    assert RANGE.short_sides(half) == (low / 2, high)


@pytest.mark.parametrize("name", get_args(Trial))
def test_an_error_ends_a_trial(name):
    def product() -> tuple[object, ...]:
        return (
            Plan._learning_rate,
            ClipDataset.read,
            GridRange.strides,
            GridRange.short_sides,
        )

    before = product()

    def interrupted() -> None:
        with during(name):
            assert product() != before
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert product() == before
    with during(None):
        assert product() == before
