"""What the sampler reads of a plan, for any steps."""

from __future__ import annotations

from dataclasses import dataclass

from vcycle.schedule.shape import Shape


@dataclass(frozen=True)
class FakeStep:
    shape: Shape
    batch_size: int
    first_sample: int


class FakePlan(list):
    """Any steps."""

    def mini_batches(self):
        return list({(step.shape, step.batch_size): step for step in self}.values())
