"""Fixtures for tests that train: a few generated videos, made once."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from vcycle.config.run import Checkpoint, Data, Evaluation, Model, RunConfig
from vcycle.demo.videos import write_videos
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape
from vcycle.train.run import train

# The same examples on every run, and no deadline: machines differ.
settings.register_profile("tests", derandomize=True, deadline=None)
settings.load_profile("tests")

# Tests compare bits of the CPU. CUDA_VISIBLE_DEVICES=0 pytest -m gpu runs those for a GPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# Tests share two cores with the workers that they start.
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give whole files to the workers of pytest-xdist, whose fixtures are then made once.

    Tests that start processes, which would wait for each other's, are one group: one worker runs
    them, one after the other. They come first, as the longest group.
    """
    here = Path(__file__).parent
    groups = []
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        group = mark.args[0] if mark else str(item.path.relative_to(here).with_suffix(""))
        if mark is None:
            item.add_marker(pytest.mark.xdist_group(group))
        groups.append(group)
    order = sorted(range(len(items)), key=lambda k: groups[k] != "processes")
    items[:] = [items[k] for k in order]


@pytest.fixture(scope="session")
def synthetic_videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 24 training and 12 validation videos and their manifest."""
    folder = tmp_path_factory.mktemp("videos")
    write_videos(folder, train_videos=24, val_videos=12, seed=0, num_workers=1)
    return folder


def small_run(videos: Path) -> RunConfig:
    """Nineteen multigrid steps of a very small model."""
    return RunConfig(
        recipe="test",
        baseline=Baseline(
            shape=Shape(8, 32, 32),
            batch_size=4,
            steps=66,
            num_videos=24,
            learning_rate=LearningRate(0.01, warmup_steps=8),
            stage_ends=(33, 50),
        ),
        multigrid=Multigrid(norm_group=4),
        data=Data(str(videos), stride=1, short_side=(36, 48), num_workers=0),
        model=Model("resnet3d_tiny", {"width": 4}),
        evaluation=Evaluation(times=3, batch_size=6),
        threads=1,
    )


@pytest.fixture(scope="session")
def trained_run(synthetic_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a complete multigrid run of a very small model, with three validations."""
    config = replace(small_run(synthetic_videos), checkpoint=Checkpoint(keep=1))
    folder = tmp_path_factory.mktemp("runs") / "multigrid"
    train(config, folder)
    return folder
