"""A small run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import small_run
from vcycle.config.run import Evaluation, Model, RunConfig


@pytest.fixture
def config(synthetic_videos: Path) -> RunConfig:
    """Nineteen multigrid steps of a very small model."""
    return small_run(synthetic_videos)


@pytest.fixture
def auto(config: RunConfig) -> RunConfig:
    """The small run, with dropout, whose batches may be cut."""
    model = Model("resnet3d_tiny", {"width": 4, "dropout": 0.5})
    return replace(config, model=model, accumulate="auto", evaluation=Evaluation(1, batch_size=6))
