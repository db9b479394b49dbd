"""A plan that crosses phases in few steps, and black micro-batches of it."""

from __future__ import annotations

import torch

from vcycle.data.batch import Batch
from vcycle.data.request import StepPart
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.plan import Multigrid, Plan
from vcycle.schedule.shape import Shape

BASELINE = Baseline(Shape(4, 16, 16), 8, 66, 24, LearningRate(0.1), (33, 50))
PLAN = Plan(BASELINE, Multigrid(norm_group=4))


def batch_of(step, *, baseline=BASELINE, **part):
    """Black clips for one part of a step."""
    part = StepPart(step, baseline, **part)
    return Batch(
        clips=torch.zeros(
            *(part.num_clips, 3, step.shape.frames, step.shape.height, step.shape.width),
            dtype=torch.uint8,
        ),
        labels=torch.zeros(part.num_clips, dtype=torch.int64),
        indices=torch.zeros(part.num_clips, dtype=torch.int64),
        part=part,
    )
