"""A small run."""

from __future__ import annotations

from pathlib import Path

import pytest

from vcycle.config.run import Data, Evaluation, Model, Optimizer, RunConfig
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.plan import Multigrid
from vcycle.schedule.shape import Shape


@pytest.fixture
def config(synthetic_videos: Path) -> RunConfig:
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
        data=Data(str(synthetic_videos), stride=1, short_side=(36, 48), num_workers=0),
        model=Model("resnet3d_tiny", {"width": 4}),
        optimizer=Optimizer("sgd"),
        evaluation=Evaluation(times=3, batch_size=6),
        threads=1,
    )
