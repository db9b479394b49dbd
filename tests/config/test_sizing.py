"""A run of another batch, length or rate: what moves with it, on every recipe."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, strategies as st

from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_config_flags
from vcycle.config.from_flags import run_config
from vcycle.config.recipes import FIXED_RECIPES, recipe
from vcycle.config.sizing import Asked, rescaled
from vcycle.config.user_recipes import scratch
from vcycle.data.manifest import Manifest


@pytest.mark.parametrize("name", FIXED_RECIPES)
def test_nothing_asked_is_the_recipe_itself(name: str) -> None:
    config = recipe(name)
    assert rescaled(config, Asked()) == config
    old = config.baseline
    same = Asked(old.batch_size, None, old.steps, old.learning_rate.base)
    assert rescaled(config, same) == config


@given(
    name=st.sampled_from(["scratch", "finetune"]),
    num_videos=st.integers(8, 5_000),
    others=st.integers(8, 5_000),
)
def test_a_file_of_ones_own_videos_plans_the_same_run(
    name: str, num_videos: int, others: int
) -> None:
    config = recipe(name, num_videos=num_videos)
    assert rescaled(config, Asked()) == config
    assert rescaled(config, Asked(), num_videos=others).baseline.steps == config.baseline.steps


@given(epochs=st.integers(1, 5_000), num_videos=st.integers(1, 3_000))
def test_epochs_are_those_that_were_written(epochs: int, num_videos: int) -> None:
    """Tenths of epochs are not exact in binary: 2.2 epochs of 50 videos are 110 clips."""
    asked = Asked(epochs=epochs / 10)
    assert asked.steps_of(num_videos, 1, num_clips=Fraction(1)) == -(-epochs * num_videos // 10)


@pytest.mark.parametrize("factor", [0.25, 0.5, 2, 3.0])
def test_the_plans_own_steps_keep_their_share(factor: float) -> None:
    config = scratch(num_videos=400, model="resnet3d_tiny")
    assert config.multigrid.steps is not None
    steps = round(factor * config.baseline.steps)
    for asked in (Asked(steps=steps), Asked(batch_size=round(8 / factor))):
        changed = rescaled(config, asked)
        share = config.multigrid.steps / config.baseline.steps
        assert changed.multigrid.steps == pytest.approx(share * changed.baseline.steps, abs=1)


@given(
    name=st.sampled_from(sorted(FIXED_RECIPES)),
    batch_size=st.integers(1, 4096),
    steps=st.none() | st.integers(1_000, 10**6),
    rate=st.none() | st.floats(1e-5, 10),
)
def test_shares_of_the_run_stay(
    name: str, batch_size: int, steps: int | None, rate: float | None
) -> None:
    config = recipe(name)
    old, new = config.baseline, rescaled(config, Asked(batch_size, None, steps, rate)).baseline
    assert new.batch_size == batch_size
    if steps is None:
        assert 0 <= new.num_clips - old.num_clips < batch_size
    else:
        assert new.steps == steps
    for ours, theirs in zip(new.stage_ends, old.stage_ends, strict=True):
        assert abs(ours - theirs * new.steps / old.steps) <= 1
    first, second = old.learning_rate, new.learning_rate
    assert abs(second.warmup_steps - first.warmup_steps * new.steps / old.steps) <= 1
    growth = (batch_size / old.batch_size) ** config.multigrid.rate_exponent
    assert second.base == pytest.approx(rate or first.base * growth)
    assert second.warmup_start / second.base == pytest.approx(first.warmup_start / first.base)


def test_norm_groups_divide_the_batch() -> None:
    config = rescaled(recipe("k400-slowfast-r50"), Asked(batch_size=12))
    assert config.multigrid.norm_group == 4
    assert "norm groups of 4 clips instead of 8, which do not divide a batch of 12" in config.notes
    plain = recipe("demo")
    plain = replace(plain, multigrid=replace(plain.multigrid, norm_group=None))
    assert rescaled(plain, Asked(batch_size=3)).multigrid.norm_group is None


def test_epochs_are_of_the_videos_given() -> None:
    config = rescaled(recipe("demo"), Asked(epochs=10), num_videos=800)
    assert config.baseline.steps == 1000
    assert config.notes == recipe("demo").notes
    assert config.steps_note == (
        "1,000 steps of the baseline instead of 1,800, as asked: 10 epochs; the rate drops and "
        "warms up at the same shares of the run"
    )
    again = rescaled(config, Asked(epochs=20), num_videos=800)
    assert "2,000 steps of the baseline instead of 1,000" in again.steps_note
    by_root = rescaled(recipe("demo"), Asked(batch_size=32)).notes
    assert "learning rate 0.016 instead of 0.008, by the square root of the batch" in by_root


def test_frames_of_videos_are_counted_as_strides_are(synthetic_videos: Path) -> None:
    videos = Manifest.read(synthetic_videos).split("train").videos
    seconds = median(len(video.frame_range) / video.frame_rate for video in videos)
    parser = FlagParser(word="recipe")
    add_config_flags(parser)
    words = ["scratch", "--data", str(synthetic_videos), "--model", "resnet3d_tiny"]
    words += ["--shape", "4x32x32"]
    for rate in (9.0, 18.0):
        config = run_config(parser.parse_args([*words, "--data.frame_rate", f"{rate}"]))
        assert (4 - 1) * config.data.stride < int(seconds * rate)
        assert 4 * (config.data.stride + 1) > int(seconds * rate)
    for rate in ("0", "-1", "nan", "inf"):
        with pytest.raises(ValueError, match=r"^data\.frame_rate .*: give a positive number"):
            run_config(parser.parse_args([*words, "--data.frame_rate", rate]))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"epochs": 1, "steps": 5}, "epochs and steps: both fix the steps; leave one out"),
        ({"rate": 0}, "--lr 0: give a positive number"),
        ({"batch_size": -1}, "--batch-size -1: give a positive number"),
    ],
)
def test_sizes_that_make_no_run(asked: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Asked(**asked)
    with pytest.raises(ValueError, match=r"^steps 2: too few for 4 learning-rate stages; "):
        rescaled(recipe("k400-slowfast-r50"), Asked(steps=2))
