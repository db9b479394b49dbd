"""What a plan costs: frames, multiply-adds, predicted seconds, and whether its batches fit.

In: a plan and figures per shape, which a benchmark of one step per shape measures. Out: totals of
the run beside those of its baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vcycle.schedule.norm_groups import fits_parts
from vcycle.schedule.plan import MiniBatch, Plan
from vcycle.schedule.shape import Shape, clip_name, stride_range

_LARGEST = 10**18
"""Of seconds, bytes and clips that somebody may have measured; a fraction of one is the least."""


@dataclass(frozen=True)
class Cost:
    """The same quantity for a plan and for its baseline."""

    plan: float
    baseline: float

    @property
    def reduction(self) -> float:
        """How many times less the plan costs."""
        return self.baseline / self.plan


def clip_cost(plan: Plan, cost_of_clip: Callable[[Shape, float], float]) -> Cost:
    """The cost of all clips, from that of one of a shape that keeps a share of its tokens."""

    def of_steps(kind: MiniBatch) -> float:
        return kind.steps * kind.batch_size * cost_of_clip(kind.shape, kind.token_share)

    return Cost(sum(map(of_steps, plan.mini_batches())), of_steps(plan.baseline_step))


def frames(plan: Plan) -> Cost:
    """Frames on the sampling grids of all clips: what a decoder must at least deliver."""
    return clip_cost(plan, lambda shape, _: shape.frames)


def frames_spanned(plan: Plan, *, stride: int) -> Cost:
    """Frames from the first to the last of every grid, which a decoder goes through.

    It can leave out only what key frames let it. ``stride`` is the baseline's, in frames; a grid
    of t frames draws its own from [stride, stride * T / t] (paper, section 4), and the mean counts
    here. Videos are taken to be long enough.
    """
    full = plan.baseline.shape.frames

    def span(shape: Shape, _: float) -> float:
        low, high = stride_range(stride, base_frames=full, frames=shape.frames)
        return (shape.frames - 1) * (low + high) / 2 + 1

    return clip_cost(plan, span)


def pixels(plan: Plan) -> Cost:
    """T x H x W of all clips: the paper's approximate FLOPs (section 3, equation 1).

    Of a clip that keeps a share of its tokens, that share.
    """
    return clip_cost(plan, lambda shape, share: shape.num_pixels * share)


@dataclass(frozen=True)
class MeasuredStep:
    """A training step of ``clips`` clips of one shape, measured on the devices that will train.

    ``seconds`` is its wall-clock time; ``step_bytes`` the peak memory of one device. It was
    normalised in groups of ``norm_group`` clips, None if in none, and kept ``token_share`` of its
    tokens.
    """

    shape: Shape
    clips: int
    seconds: float
    step_bytes: float | None = None
    norm_group: int | None = None
    token_share: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.clips, int) or not 1 <= self.clips <= _LARGEST:
            raise ValueError(
                f"clips {str(self.clips)[:20]} at {self.shape}: give a whole number from 1"
            )
        figures = {"seconds": self.seconds}
        if self.step_bytes is not None:
            figures["bytes"] = self.step_bytes
        for name, value in figures.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 1 / _LARGEST <= value <= _LARGEST:
                shown = str(value)[:20]
                raise ValueError(f"{name} {shown} at {self.shape}: give a positive number")


def measured_steps(rows: Any) -> list[MeasuredStep]:
    """Measurements from a list of rows as JSON has them: those of ``vcycle bench step``.

    ``{"shape": "8x158x158", "clips": 4096, "seconds": 1.9, "norm_group": 8, "bytes": 3.1e10}``;
    norm_group, bytes and token_share may be left out, and other keys are not read. A shape may be
    there with several batches, norm groups and shares. Raises ValueError if a row has no such form,
    or if the same step is given twice.
    """
    if not isinstance(rows, list) or not rows:
        raise ValueError("give a list of rows with shape, clips, seconds and, for memory, bytes")
    steps: dict[tuple[Shape, int, int | None, float], MeasuredStep] = {}
    for number, row in enumerate(rows):
        keys = set(row) if isinstance(row, dict) else set()
        if not {"shape", "clips", "seconds"} <= keys:
            raise ValueError(f"row {number}: give shape, clips and seconds")
        shape, group = Shape.parse(str(row["shape"])), row.get("norm_group")
        share = row.get("token_share", 1.0)
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise ValueError(f"token_share {share} at {shape}: give a share above 0 and at most 1")
        if group is not None and (not isinstance(group, int) or group < 1):
            raise ValueError(f"norm_group {group} at {shape}: give a number of clips, or null")
        step = MeasuredStep(shape, row["clips"], row["seconds"], row.get("bytes"), group, share)
        key = shape, step.clips, group, share
        if key in steps:
            raise ValueError(
                f"row {number}: {step.clips} clips of {shape} are there twice; leave one out"
            )
        steps[key] = step
    return list(steps.values())


def seconds(plan: Plan, measured: Sequence[MeasuredStep]) -> Cost:
    """Predicted wall-clock seconds of all steps, validation and checkpoints left out.

    A step is as long as the measured one of its shape that is nearest in clips, then in norm group;
    in proportion to the clips if it has more or fewer. Raises ValueError if a shape was not
    measured, and names the clips to measure it at.
    """
    _require(plan, measured, "seconds")

    def of_step(kind: MiniBatch) -> float:
        near = nearest_step(measured, kind)
        return near.seconds / near.clips * kind.batch_size

    total = sum(each.steps * of_step(each) for each in plan.mini_batches())
    return Cost(total, plan.baseline.steps * of_step(plan.baseline_step))


def _is_of(step: MeasuredStep, kind: MiniBatch) -> bool:
    """Whether a clip of a measured step costs what one of a kind does."""
    return (step.shape, step.token_share) == (kind.shape, kind.token_share)


def nearest_step(measured: Iterable[MeasuredStep], kind: MiniBatch) -> MeasuredStep:
    """Of the steps of a kind's shape and tokens the nearest in clips, then of its norm group."""
    return min(
        (step for step in measured if _is_of(step, kind)),
        key=lambda step: (
            abs(math.log(step.clips / kind.batch_size)),
            step.norm_group != kind.norm_group,
        ),
    )


@dataclass(frozen=True)
class BatchMemory:
    """Whether the batch of one shape fits on the devices.

    ``batch_size`` is of the global batch, ``step_bytes`` what its share takes on one device.
    ``micro_batch`` is the largest number of clips that each device can take at once so that no
    norm group is cut in two: its share of the batch if that fits, None if nothing does.
    """

    shape: Shape
    batch_size: int
    step_bytes: float
    fits: bool
    micro_batch: int | None
    token_share: float = 1.0


def batch_memory(
    plan: Plan,
    measured: Sequence[MeasuredStep],
    *,
    available_bytes: float,
    num_devices: int = 1,
) -> list[BatchMemory]:
    """For every shape: does its batch fit on ``num_devices`` devices, and what micro-batch would?

    Steps were measured on as many devices. Memory is taken to grow with the clips, which overstates
    it for small batches: weights and optimizer state do not shrink. Raises ValueError if a shape
    has no figure, or if the devices cannot share a batch evenly.
    """
    if num_devices < 1:
        raise ValueError(f"num_devices {num_devices}: give at least 1")
    if not 0 < available_bytes < math.inf:
        raise ValueError(f"memory {available_bytes}: give a positive number of bytes")
    with_bytes = [step for step in measured if step.step_bytes is not None]
    _require(plan, with_bytes, "bytes")
    rows = []
    for kind in _largest_norm_groups(plan):
        shape, batch_size = kind.shape, kind.batch_size
        share, rest = divmod(batch_size, num_devices)
        if rest:
            raise ValueError(
                f"num_devices {num_devices}: it does not divide the batch of {batch_size} clips "
                f"at {shape}"
            )
        near = nearest_step(with_bytes, kind)
        step_bytes = (near.step_bytes or 0) / near.clips * batch_size
        most = math.floor(share * min(1, available_bytes / step_bytes) + 1e-9)
        micro_batch = _micro_batch(share, most, group=kind.norm_group or 1, num_devices=num_devices)
        rows.append(
            BatchMemory(shape, batch_size, step_bytes, most == share, micro_batch, kind.token_share)
        )
    return rows


def _micro_batch(share: int, most: int, *, group: int, num_devices: int) -> int | None:
    """The largest divisor of a device's share, up to ``most``, that cuts no norm group in two.

    Groups fill the clips of a device, or are split evenly over devices.
    """
    for clips in range(most, 0, -1):
        at_once = clips * num_devices
        if share % clips == 0 and fits_parts(group, batch_clips=at_once, num_parts=num_devices):
            return clips
    return None


def _largest_norm_groups(plan: Plan) -> list[MiniBatch]:
    """Of each (shape, batch size, share of tokens) the kind with the largest norm group."""
    kinds: dict[tuple[Shape, int, float], MiniBatch] = {}
    for each in plan.mini_batches():  # in each, the largest norm group comes last
        kinds[each.shape, each.batch_size, each.token_share] = each
    return list(kinds.values())


def _require(plan: Plan, measured: Iterable[MeasuredStep], what: str) -> None:
    """Raise ValueError unless every shape of the plan and of its baseline has a figure."""
    steps = list(measured)
    missing: dict[str, int] = {}
    for kind in (*plan.mini_batches(), plan.baseline_step):
        if not any(_is_of(step, kind) for step in steps):
            missing[clip_name(kind.shape, kind.token_share)] = kind.batch_size
    if missing:
        listed = ", ".join(f"{shape} with {clips:,} clips" for shape, clips in missing.items())
        raise ValueError(f"{what} of a step: measure {listed} too")
