"""Whether a configuration fits its network, its videos and the machine, and what would.

In: a configuration, and what is known of the videos. Out: the configuration with what does not fit
changed where that is ours to choose, and a note on it; or flags of a smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from vcycle.config.run import RunConfig
from vcycle.config.sizing import longest_stride, other_notes
from vcycle.schedule.multigrid import COARSE_TO_FINE
from vcycle.schedule.shape import Shape

_LARGER_CLIPS = "clips are larger than videos"
_LONGER_CLIPS = "clips span"
_SMALL_GRIDS = "grids of"
_BEGINNING = "the pass begins at"
_SMALLEST = Shape(2, 34, 34)
"""The smallest grid of the study."""
_LEAST_SIDE = 32
"""Pixels that every network takes, and of which the sides that are proposed are multiples."""


def unfitted(config: RunConfig) -> RunConfig:
    """A run's file as it was before ``fitted_cycle``, to be fitted again to what is asked now."""
    notes, reasons = (
        other_notes(each, _BEGINNING) for each in (config.notes, config.schedule_notes)
    )
    cycle = config.multigrid.long_cycle
    if cycle is None or (notes, reasons) == (config.notes, config.schedule_notes):
        return config
    cycle = replace(cycle, factors=COARSE_TO_FINE)
    multigrid = replace(config.multigrid, long_cycle=cycle)
    return replace(config, multigrid=multigrid, notes=notes, schedule_notes=reasons)


def fitted_cycle(config: RunConfig) -> RunConfig:
    """A configuration whose coarse shapes have no fewer frames or pixels than its network takes.

    Frames are doubled and sides made sqrt(2) times as large, up to those of the baseline, until
    they are enough; a note says so, among the reasons of a schedule that a recipe chose. That is
    off if no shape is left but the baseline's. For a pass whose factors nobody asked for.
    """
    cycle, rule, shape = config.multigrid.long_cycle, config.multigrid.rule, config.baseline.shape
    if cycle is None:
        return config

    def accepts(frames: float, side: float) -> bool:
        try:
            rule.scale(shape, frames=frames, side=side)
        except ValueError:
            return False
        return True

    def raised(frames: float, side: float) -> tuple[float, float]:
        while frames < 1 and not accepts(frames, 1.0):
            frames = min(1.0, 2 * frames)
        while side < 1 and not accepts(1.0, side):
            side = min(1.0, side * math.sqrt(2))
        return frames, side

    why = f"{config.model.name} takes no smaller clips at {shape}"
    factors = tuple(raised(*each) for each in cycle.factors)
    shapes = {rule.scale(shape, frames=each[0], side=each[1]) for each in factors}
    if config.has_chosen_schedule and shapes == {shape}:
        off = config.multigrid.with_schedule("off")
        return replace(config, multigrid=off, schedule_notes=(f"schedule off: {why}",))
    if factors == cycle.factors:
        return config
    frames, side = factors[0]
    note = f"{_BEGINNING} {frames:g} of the frames and {side:.3g} of the side: {why}"
    multigrid = replace(config.multigrid, long_cycle=replace(cycle, factors=factors))
    return _noted(replace(config, multigrid=multigrid), note)


def _noted(config: RunConfig, note: str) -> RunConfig:
    """With a note on its schedule, which is a reason only beside those of a recipe that chose."""
    if config.has_chosen_schedule:
        return replace(config, schedule_notes=(*config.schedule_notes, note))
    return replace(config, notes=(*config.notes, note))


def noted_grids(config: RunConfig) -> RunConfig:
    """A configuration with a note if a schedule that its recipe chose has grids that nobody tried.

    They have fewer frames or pixels than the smallest of the study (docs/which_schedule.md).
    """
    cycle, rule = config.multigrid.long_cycle, config.multigrid.rule
    if cycle is None:
        return config
    config = replace(config, schedule_notes=other_notes(config.schedule_notes, _SMALL_GRIDS))
    frames, side = cycle.factors[0]
    first = rule.scale(config.baseline.shape, frames=frames, side=side)
    least_side = min(_SMALLEST.height, _SMALLEST.width)
    if first.frames >= _SMALLEST.frames and min(first.height, first.width) >= least_side:
        return config
    note = (
        f"{_SMALL_GRIDS} {first} are smaller than any that was tried ({_SMALLEST}): compare with "
        f"--schedule off"
    )
    return _noted(config, note)


def other_epoch(config: RunConfig, num_videos: int) -> str:
    """That a plan's epochs are not those of its training videos; empty if they are."""
    counted = config.baseline.num_videos
    if num_videos == counted:
        return ""
    return (
        f"{num_videos} training videos; the plan counts its epochs in {counted} "
        f"(--baseline.num_videos)"
    )


def fitted_span(
    config: RunConfig, video_frames: int | None, *, given: Collection[str], is_own: bool
) -> RunConfig:
    """A configuration whose clips span no more than ``video_frames``, those of a typical video.

    They are counted as strides are, at ``data.frame_rate`` if it is set.

    One's own videos get a smaller stride, unless it is ``given``; a published recipe is left as it
    is. A note says what was done, or what to do if the clips still span more: the sampling grid
    then begins at the first frame and repeats the last.
    """
    notes = list(other_notes(config.notes, _LONGER_CLIPS))
    config = replace(config, notes=tuple(notes))
    frames, stride = config.baseline.shape.frames, config.data.stride
    if config.data.segments or video_frames is None:
        return config
    if (frames - 1) * stride < video_frames:
        return config
    fitting = longest_stride(frames, video_frames)
    if is_own and "data.stride" not in given and fitting < stride:
        notes.append(
            f"stride {fitting} instead of {stride}: {frames} frames would span "
            f"{(frames - 1) * stride + 1}, and half of the videos have {video_frames} or fewer"
        )
        stride = fitting
    if (frames - 1) * stride >= video_frames:
        shape = config.baseline.shape
        fewer = 2 ** int(math.log2(max(1, video_frames)))
        advice = f"--data.stride {fitting}"
        if frames > video_frames:
            advice = f"--shape {fewer}x{shape.height}x{shape.width} --data.stride 1"
        notes.append(
            f"{_LONGER_CLIPS} {(frames - 1) * stride + 1} frames, but half of the videos have "
            f"{video_frames} or fewer, whose last frame is repeated; {advice} fits them"
        )
    return replace(config, data=replace(config.data, stride=stride), notes=tuple(notes))


def noted_side(config: RunConfig, video_side: int | None) -> RunConfig:
    """A configuration with a note if its clips have more pixels than the videos fill.

    ``video_side`` is the short side of a typical video, in pixels.
    """
    notes = other_notes(config.notes, _LARGER_CLIPS)
    shape = config.baseline.shape
    side = min(shape.height, shape.width)
    if video_side is not None and side > video_side:
        note = (
            f"{_LARGER_CLIPS}: the short side of half of these has {video_side} pixels or fewer, "
            f"that of clips {side}"
        )
        ratio = video_side / side
        height, width = (
            max(_LEAST_SIDE, int(each * ratio) // _LEAST_SIDE * _LEAST_SIDE)
            for each in (shape.height, shape.width)
        )
        share = height * width / (shape.height * shape.width)
        if share < 1:
            note += f"; --shape {shape.frames}x{height}x{width} has {share:.0%} of the pixels"
        notes = (*notes, note)
    return replace(config, notes=notes)


def smaller(config: RunConfig) -> str | None:
    """Flags of a smaller model or shape than a run's; None if there is none to speak of."""
    old = config.baseline.shape
    if config.model.name != "resnet3d_tiny":
        shape = Shape(8, 112, 112)
        return f"--model resnet3d_tiny --shape {shape if _fits_in(shape, old) else old}"
    frames, side = max(4, old.frames // 2), max(32, min(old.height, old.width) // 3 * 2 // 16 * 16)
    shape = Shape(frames, side, side)
    return f"--shape {shape}" if _fits_in(shape, old) and shape != old else None


def _fits_in(shape: Shape, other: Shape) -> bool:
    return (
        shape.frames <= other.frames and shape.height <= other.height and shape.width <= other.width
    )
