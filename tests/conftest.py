"""Fixtures for tests that train: a few generated videos, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings

from vcycle.demo.videos import write_videos

# The same examples on every run, and no deadline: machines differ.
settings.register_profile("tests", derandomize=True, deadline=None)
settings.load_profile("tests")

# Tests share two cores with the workers that they start.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def synthetic_videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 24 training and 12 validation videos and their manifest."""
    folder = tmp_path_factory.mktemp("videos")
    write_videos(folder, train_videos=24, val_videos=12, seed=0, num_workers=1)
    return folder
