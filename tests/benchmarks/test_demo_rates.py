"""The demo's rates: chosen on training videos alone, and those that the published runs chose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import demo_rates
from vcycle.data.manifest import Manifest
from vcycle.demo.comparison import RATES
from vcycle.demo.videos import write_videos


def test_the_tuning_part_is_of_training_videos(tmp_path: Path) -> None:
    videos = write_videos(tmp_path / "videos", train_videos=12, val_videos=2, num_workers=1)
    demo_rates.write_tuning_part(videos, tmp_path / "part")
    part = Manifest.read(tmp_path / "part")
    assert [video.split for video in part.videos] == ["train"] * 9 + ["val"] * 3
    train_videos = videos.split("train").videos
    files = [part.locate(video).uri for video in part.videos]
    assert [Path(uri.removeprefix("file://")) for uri in files] == [
        tmp_path / "videos" / video.path for video in train_videos
    ]
    assert [video.labels for video in part.videos] == [video.labels for video in train_videos]


def test_a_row_is_tuned_over_its_own_plan(tmp_path: Path) -> None:
    videos = write_videos(tmp_path / "videos", train_videos=12, val_videos=2, num_workers=1)
    part = demo_rates.write_tuning_part(videos, tmp_path / "part")
    for row in RATES:
        config = demo_rates.tuning_config(row, 0.004, part)
        demo = demo_rates.demo_configs(tmp_path / "part", quick=False)[row]
        assert config.baseline.num_videos == 9
        rates = [each.baseline.learning_rate.base for each in (config, demo)]
        assert rates[0] * RATES[row] == rates[1] * 0.004
        rate = demo.baseline.learning_rate
        baseline = replace(config.baseline, learning_rate=rate, num_videos=1200)
        assert baseline == demo.baseline
        assert len(config.plan()) == len(demo.plan())


def test_half_a_baseline_is_a_whole_schedule_of_half_its_steps(tmp_path: Path) -> None:
    half = demo_rates.half_config(Manifest(tmp_path, ("one",), ()))
    baseline = demo_rates.demo_configs(tmp_path, quick=False)["baseline"]
    assert 2 * len(half.plan()) == len(baseline.plan())
    assert half.baseline == baseline.baseline
    rates = [step.learning_rate for step in half.plan()]
    assert max(rates) == pytest.approx(baseline.baseline.learning_rate.base, rel=0.01)
    assert rates[-1] < 0.02 * max(rates)


def test_the_least_loss_is_chosen_once_it_lies_between_two_worse_ones() -> None:
    losses = {0.004: 0.5, 0.008: 0.3, 0.016: 0.2, 0.032: 0.4}
    runs = [
        {"row": row, "rate": rate, "loss": loss, "top1": loss}
        for row in ("anneal", "small")
        for rate, loss in losses.items()
    ]
    assert demo_rates.table(runs)["chosen"] == {"small": 0.016, "anneal": 0.016}
    assert demo_rates.table(runs[:-1])["chosen"] == {"anneal": 0.016}


def test_the_demo_runs_at_the_rates_that_were_chosen() -> None:
    results = json.loads(demo_rates.RESULTS.read_text())
    assert results["chosen"] == RATES
    assert results == json.loads(json.dumps(demo_rates.table(results["runs"], results["half"])))
