"""What moves together when a run is asked for another batch, length, rate or shape.

In: a configuration and what was asked for, such as ``--batch-size 32`` or ``--epochs 30``. Out: the
configuration with everything that depends on it scaled, and a note for each change. A field that
is set by its own name is set after this, and wins.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from vcycle.config.run import RunConfig
from vcycle.schedule.baseline import Baseline
from vcycle.schedule.shape import Shape

_SIDES, _STRIDE = "short sides of", "stride"
"""How the notes of another shape begin."""


def epochs_text(epochs: float) -> str:
    """Three digits, or all that stand before the point."""
    return f"{epochs:,.0f}" if epochs >= 999.5 else f"{epochs:.3g}"


def time_text(seconds: float) -> str:
    """Whole seconds as ``--time`` takes them, in hours or minutes if they are whole ones too."""
    whole = max(1, round(seconds))
    size, unit = next((s, u) for s, u in ((3600, "h"), (60, "m"), (1, "s")) if whole % s == 0)
    return f"{whole // size}{unit}"


def other_notes(notes: Iterable[str], *beginnings: str) -> tuple[str, ...]:
    """Those that begin otherwise: of what is looked at anew a run's own file has an older note."""
    return tuple(note for note in notes if not note.startswith(beginnings))


def rate_exponent(optimizer: str) -> float:
    """The power of the batch that an optimizer's rate follows: the linear or square-root rule."""
    return 0.5 if optimizer in ("adamw", "muon", "lamb") else 1.0


def rate_rule(exponent: float) -> str:
    """How a rate follows the batch, in words."""
    rules = {1.0: "in proportion to the batch", 0.5: "by the square root of the batch"}
    return rules.get(exponent, f"by the batch to the power {exponent:g}")


def clips_in(epochs: float, num_videos: int) -> Fraction:
    """Clips of so many epochs as they are written: 2.2 of 50 videos are 110, no more."""
    return Fraction(str(epochs)) * num_videos


@dataclass(frozen=True)
class Asked:
    """What of a baseline's size a user has fixed; None leaves it to the recipe.

    Args:
        batch_size: clips of a step.
        epochs: passes of the baseline over the videos.
        steps: of the baseline; give these or epochs.
        rate: the base learning rate at this batch size.
        is_timed: the steps will be those that fit into a time.
    """

    batch_size: int | None = None
    epochs: float | None = None
    steps: int | None = None
    rate: float | None = None
    is_timed: bool = False

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps: both fix the steps; leave one out")
        flags = ("--batch-size", "--epochs", "--baseline.steps", "--lr")
        values = (self.batch_size, self.epochs, self.steps, self.rate)
        for flag, value in zip(flags, values, strict=True):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{flag} {value:g}: give a positive number")

    def steps_of(self, num_videos: int, batch_size: int, *, num_clips: Fraction) -> int:
        """Steps of the baseline, for ``num_clips`` unless epochs or steps are asked for."""
        if self.steps is not None:
            return self.steps
        if self.epochs is not None:
            num_clips = clips_in(self.epochs, num_videos)
        return math.ceil(num_clips / batch_size)


def rescaled(config: RunConfig, asked: Asked, *, num_videos: int | None = None) -> RunConfig:
    """A configuration at the batch, length and rate that were asked for.

    The rate follows the batch to the power of the rate exponent (1 is the linear scaling rule),
    steps fall as the batch grows, and stage ends, warm-up and, if they are fixed, the plan's own
    steps keep their shares of the baseline's. ``num_videos`` are those of an epoch, the baseline's
    unless given. Raises ValueError if the steps are too few for the learning-rate stages.
    """
    old, notes, steps_note = config.baseline, list(config.notes), config.steps_note
    num_videos = num_videos or old.num_videos
    batch_size = asked.batch_size or old.batch_size
    steps = asked.steps_of(num_videos, batch_size, num_clips=Fraction(old.num_clips))
    rate = asked.rate or old.learning_rate.base * math.pow(
        batch_size / old.batch_size, config.multigrid.rate_exponent
    )
    if batch_size != old.batch_size:
        notes.append(f"batch size {batch_size:,} instead of {old.batch_size:,}")
    if rate != old.learning_rate.base:
        why = rate_rule(config.multigrid.rate_exponent) if asked.rate is None else "as asked"
        notes.append(f"learning rate {rate:g} instead of {old.learning_rate.base:g}, {why}")
    if steps != old.steps:
        ask = asked.steps is not None or asked.epochs is not None
        steps_note = (
            f"{steps:,} steps of the baseline instead of {old.steps:,}, "
            f"{'as asked' if ask else 'for as many clips'}: "
            f"{epochs_text(steps * batch_size / num_videos)} epochs; the rate drops and warms up "
            f"at the same shares of the run"
        )
    group = config.multigrid.norm_group
    if group is not None and batch_size % group:
        group = math.gcd(batch_size, group)
        notes.append(
            f"norm groups of {group} clips instead of {config.multigrid.norm_group}, "
            f"which do not divide a batch of {batch_size}"
        )
    own_steps = config.multigrid.steps
    if own_steps is not None:
        own_steps = max(1, round(own_steps * steps / old.steps))
    return replace(
        config,
        baseline=_stretched(old, batch_size=batch_size, steps=steps, rate=rate),
        multigrid=replace(config.multigrid, norm_group=group, steps=own_steps),
        notes=tuple(notes),
        steps_note=steps_note,
    )


def with_steps(config: RunConfig, steps: int) -> RunConfig:
    """The configuration with so many steps of its baseline, everything in proportion."""
    return rescaled(config, Asked(steps=steps))


def fewest_steps(config: RunConfig) -> int:
    """The fewest steps of the baseline that have a plan, up to those that it has."""
    return next(steps for steps in range(1, config.baseline.steps + 1) if has_plan(config, steps))


def has_plan(config: RunConfig, steps: int) -> bool:
    """Whether so many steps of the baseline have a plan.

    Of the paper's schedule some above the fewest have none: what they leave a shape is rounded.
    """
    try:
        with_steps(config, steps).plan()
    except ValueError:
        return False
    return True


def _stretched(old: Baseline, *, batch_size: int, steps: int, rate: float) -> Baseline:
    """Stage ends and warm-up at the same shares of the steps, the warm-up's start of the rate."""
    learning_rate = old.learning_rate
    return replace(
        old,
        batch_size=batch_size,
        steps=steps,
        stage_ends=stage_ends(steps, old.stage_ends, of=old.steps),
        learning_rate=replace(
            learning_rate,
            base=rate,
            warmup_steps=round(learning_rate.warmup_steps * steps / old.steps),
            warmup_start=min(rate, learning_rate.warmup_start * (rate / learning_rate.base)),
        ),
    )


def stage_ends(steps: int, ends: tuple[int, ...], *, of: int) -> tuple[int, ...]:
    """The steps at which the rate drops, as those of a run ``of`` so many steps.

    Raises ValueError if a stage would have no step.
    """
    ends = tuple(end * steps // of for end in ends)
    if len({0, *ends, steps}) < len(ends) + 2:
        raise ValueError(
            f"steps {steps}: too few for {len(ends) + 1} learning-rate stages; give more epochs or "
            f"steps, or a smaller batch"
        )
    return ends


def longest_stride(frames: int, video_frames: int) -> int:
    """The stride at which so many frames span no more than a video, or 1."""
    return max(1, (video_frames - 1) // max(1, frames - 1))


def reshaped(
    config: RunConfig, shape: Shape, *, given: Collection[str], video_frames: int | None = None
) -> RunConfig:
    """A configuration at another shape, whose clips show as much of a video as before.

    Short sides follow the side, and the stride keeps the span; it is less if clips would span more
    than ``video_frames``. ``given`` are fields set by name, which are left alone.
    """
    old, data = config.baseline.shape, config.data
    notes = list(other_notes(config.notes, _SIDES, _STRIDE))
    ratio = min(shape.height, shape.width) / min(old.height, old.width)
    if "data.short_side" not in given and ratio != 1:
        least, most = (round(side * ratio) for side in data.short_side)
        data = replace(data, short_side=(least, most))
        notes.append(f"{_SIDES} {least} to {most} pixels, in proportion to {shape}")
    if "data.stride" not in given and not data.segments and shape.frames != old.frames:
        stride = max(1, round(data.stride * old.frames / shape.frames))
        if video_frames is not None:
            stride = min(stride, longest_stride(shape.frames, video_frames))
        if stride != data.stride:
            span = (shape.frames - 1) * stride + 1
            notes.append(f"{_STRIDE} {stride}: {shape.frames} frames span {span} of a video")
        data = replace(data, stride=stride)
    return replace(
        config,
        baseline=replace(config.baseline, shape=shape),
        data=data,
        notes=tuple(notes),
    )
