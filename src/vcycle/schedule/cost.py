"""What a plan costs: frames, multiply-adds, predicted seconds, and whether its batches fit.

In: a plan and figures per shape, which a benchmark of one step per shape measures. Out: totals of
the run beside those of its baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape


@dataclass(frozen=True)
class Cost:
    """The same quantity for a plan and for its baseline."""

    plan: float
    baseline: float

    @property
    def reduction(self) -> float:
        """How many times less the plan costs."""
        return self.baseline / self.plan


def clip_cost(plan: Plan, cost_of_clip: Callable[[Shape], float]) -> Cost:
    """The cost of all clips, where one clip of a shape costs ``cost_of_clip(shape)``."""
    total = sum(
        count * batch_size * cost_of_clip(shape)
        for (shape, batch_size), count in plan.step_counts().items()
    )
    return Cost(total, plan.baseline.num_clips * cost_of_clip(plan.baseline.shape))


def frames(plan: Plan) -> Cost:
    """Frames on the sampling grids of all clips: what a decoder must at least deliver."""
    return clip_cost(plan, lambda shape: shape.frames)


def pixels(plan: Plan) -> Cost:
    """T x H x W of all clips: the paper's approximate FLOPs (section 3, equation 1)."""
    return clip_cost(plan, lambda shape: shape.num_pixels)


def seconds(plan: Plan, step_seconds: Mapping[Shape, float]) -> Cost:
    """Predicted wall-clock seconds of all steps, validation and checkpoints left out.

    ``step_seconds`` are measured at the batch sizes of ``plan.mini_batches()``; where a step has
    fewer clips of a shape, its seconds are taken in proportion. ValueError names the shapes that
    were not measured.
    """
    measured_at = plan.mini_batches()
    _require(plan, step_seconds, "seconds of a step")
    return clip_cost(plan, lambda shape: step_seconds[shape] / measured_at[shape])


@dataclass(frozen=True)
class BatchMemory:
    """Whether the largest batch of one shape fits on a device.

    ``batch_size`` is of the global batch, ``step_bytes`` the peak of one device. ``micro_batch``
    is the largest number of clips that a device can take at once, in whole norm groups: the
    batch's share of the device where that fits, None where not even one group does.
    """

    shape: Shape
    batch_size: int
    step_bytes: float
    fits: bool
    micro_batch: int | None


def batch_memory(
    plan: Plan,
    step_bytes: Mapping[Shape, float],
    *,
    available_bytes: float,
    num_devices: int = 1,
) -> list[BatchMemory]:
    """For every shape: does its largest batch fit, and what micro-batch would?

    ``step_bytes`` are peaks of one device that takes 1 / ``num_devices`` of the batches of
    ``plan.mini_batches()``. Memory is taken to grow with the clips, which overstates it for small
    batches: weights and optimizer state do not shrink. ValueError names the shapes that have no
    figure.
    """
    _require(plan, step_bytes, "memory of a step")
    rows = []
    groups = _largest_norm_groups(plan)
    for shape, batch_size in plan.mini_batches().items():
        share, group = max(1, batch_size // num_devices), groups[shape]
        micro_batch = next(
            (
                clips
                for clips in range(share, 0, -1)
                if share % clips == 0
                and (clips % group == 0 or share < group)
                and step_bytes[shape] * clips / share <= available_bytes
            ),
            None,
        )
        fits = micro_batch == share
        rows.append(BatchMemory(shape, batch_size, step_bytes[shape], fits, micro_batch))
    return rows


def _largest_norm_groups(plan: Plan) -> dict[Shape, int]:
    """The clips that must stay together on a device, 1 without norm groups."""
    groups: dict[Shape, int] = {}
    for phase in plan.phases:
        for short in phase.base.short_cycle:
            group = short.norm_group or 1
            groups[short.shape] = max(group, groups.get(short.shape, 1))
    return groups


def _require(plan: Plan, figures: Mapping[Shape, float], what: str) -> None:
    needed = [*plan.mini_batches(), plan.baseline.shape]
    missing = sorted({str(shape) for shape in needed if shape not in figures})
    if missing:
        raise ValueError(f"{what}: no figure for {', '.join(missing)}; measure these shapes too")
