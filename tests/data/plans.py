"""What the sampler reads of a plan, for any steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from vcycle.schedule.shape import Shape


@dataclass(frozen=True)
class FakeStep:
    shape: Shape
    batch_size: int
    first_sample: int


class FakePlan(list):
    """Any steps."""

    def step_counts(self):
        return Counter((step.shape, step.batch_size) for step in self)
