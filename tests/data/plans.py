"""What the sampler reads of a plan, for any steps."""

from __future__ import annotations

from dataclasses import replace

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Step
from vcycle.schedule.shape import Shape


def FakeStep(shape: Shape, batch_size: int, first_sample: int) -> Step:  # noqa: N802
    """A step of any size; its plan numbers it."""
    return Step(0, 0, shape, batch_size, 0.1, None, first_sample)


class FakePlan(list):
    """Any steps."""

    def __init__(self, steps):
        super().__init__(replace(step, index=index) for index, step in enumerate(steps))
        self.multigrid = Multigrid()
        self.baseline = Baseline(max(step.shape for step in self), 8, 1, 8, LearningRate(0.1))

    @property
    def num_clips(self):
        return sum(step.batch_size for step in self)

    def mini_batches(self):
        return list({(step.shape, step.batch_size): step for step in self}.values())
