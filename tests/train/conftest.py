"""A small run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import small_run
from vcycle.config.run import RunConfig


@pytest.fixture
def config(synthetic_videos: Path) -> RunConfig:
    """Nineteen multigrid steps of a very small model."""
    return small_run(synthetic_videos)
