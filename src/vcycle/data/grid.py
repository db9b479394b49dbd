"""Sampling grids: which frames and which pixels of a video make a clip of a given shape.

A video's metadata and a ``Shape`` go in, a ``Grid`` comes out: a span and a stride in time and in
space (paper, section 3.1), in units of the source video. For training both are drawn at random, so
that any video gives clips of any t x h x w (section 4, Multigrid Training Details); for evaluation
they are fixed views. Nothing here touches pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from vcycle.data.metadata import Video, VideoInfo
from vcycle.schedule.arguments import as_tuple, check_type, keep, whole_number
from vcycle.schedule.shape import Shape, stride_range

_MOST_CLIPS = 10_000  # of a video, in an evaluation


@dataclass(frozen=True)
class Box:
    """A rectangle of the displayed frame, in pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class Grid:
    """One clip's sampling grid: its source frames' numbers, and how each becomes (H, W) pixels.

    ``box`` is the spatial span; the spatial stride is ``box.height / height``. Frame numbers never
    decrease; at the end of a short video the last one repeats. ``frame_size`` is the displayed
    height and width that ``box`` is of; None is each frame's own.
    """

    frames: tuple[int, ...]
    box: Box
    height: int
    width: int
    flip: bool
    frame_size: tuple[int, int] | None = None

    @property
    def clip_shape(self) -> tuple[int, int, int, int]:
        """(T, H, W, 3) of the clip's pixels."""
        return len(self.frames), self.height, self.width, 3

    def box_in(self, height: int, width: int) -> Box:
        """``box`` in a displayed frame of this size, which recordings of calls change midway."""
        if self.frame_size is None or self.frame_size == (height, width):
            return self.box
        down, across = height / self.frame_size[0], width / self.frame_size[1]
        top, left = round(self.box.top * down), round(self.box.left * across)
        bottom = round((self.box.top + self.box.height) * down)
        right = round((self.box.left + self.box.width) * across)
        return Box(top, left, max(bottom - top, 1), max(right - left, 1))


@dataclass(frozen=True)
class View:
    """One of ``num_clips`` x ``num_crops`` deterministic grids of a video."""

    clip: int = 0
    num_clips: int = 1
    crop: int = 0
    num_crops: int = 1

    def __post_init__(self) -> None:
        if self.num_crops not in (1, 3):
            raise ValueError(f"num_crops {self.num_crops}: give 1 (centre) or 3 (along the side)")
        if self.num_clips < 1:
            raise ValueError(f"num_clips {self.num_clips}: give at least 1")
        if self.num_clips > _MOST_CLIPS:
            raise ValueError(f"num_clips {self.num_clips}: give at most {_MOST_CLIPS:,}")
        if not (0 <= self.clip < self.num_clips and 0 <= self.crop < self.num_crops):
            raise ValueError(
                f"clip {self.clip} of {self.num_clips}, crop {self.crop} of {self.num_crops}: "
                f"count both from 0"
            )


@dataclass(frozen=True)
class GridRange:
    """The range that grids are drawn from, given for the base shape T x H x W (paper, section 4).

    ``stride`` is the base temporal stride in frames; ``short_side`` is the interval in pixels that
    the video's shorter side is scaled to before an H x W crop: 2 and (256, 340) for the paper's
    32 x 224 x 224. With ``frame_rate``, strides count frames at that rate, whatever the video's
    own; without it they count the source's frames, as in the paper's footnote 5.

    ``segments`` samples one frame from each of T equal parts of the video instead, and strides are
    not used (Something-Something V2). ``inverse_uniform`` draws the reciprocal of the short side
    uniformly, so that spans are uniform instead of sizes (the official code's choice for
    Something-Something V2 and Charades; the paper does not say).

    Raises ValueError if the stride, the short side's interval or the frame rate is none.
    """

    base: Shape
    stride: int
    short_side: tuple[float, float]
    frame_rate: float | None = None
    segments: bool = False
    inverse_uniform: bool = False

    def __post_init__(self) -> None:
        check_type("base", self.base, Shape, example="vcycle.Shape(32, 224, 224)")
        low, high = self._ends()
        give = "a whole number of frames, at least 1"
        keep(self, short_side=(low, high), stride=whole_number("stride", self.stride, give=give))
        least = min(self.base.height, self.base.width)
        if not least <= low <= high:
            raise ValueError(
                f"short_side ({low}, {high}): give an increasing interval that starts at the base "
                f"crop or above, {least} pixels, such as [{least},{least * 4 // 3}]"
            )
        if self.frame_rate is not None and not self.frame_rate > 0:
            raise ValueError(f"frame_rate {self.frame_rate}: give a positive number of frames/s")

    def _ends(self) -> tuple[float, float]:
        example = "(256, 340)"
        ends = as_tuple("short_side", self.short_side, example=example)
        if len(ends) != 2:
            raise ValueError(
                f"short_side {self.short_side!r}: give its two ends, such as {example}"
            )
        return ends

    def strides(self, frames: int) -> tuple[int, int]:
        """The least and greatest stride of a t-frame clip, by ``stride_range``."""
        return stride_range(self.stride, base_frames=self.base.frames, frames=frames)

    def short_sides(self, shape: Shape) -> tuple[float, float]:
        """The interval [low * h / H, high] of the short side, in pixels of the clip."""
        low, high = self.short_side
        ratio = max(shape.height / self.base.height, shape.width / self.base.width)
        return low * ratio, max(high, low * ratio)

    def draw_short_side(self, shape: Shape, rng: np.random.Generator) -> float:
        """A short side from its interval, in pixels of the clip; not rounded."""
        low, high = self.short_sides(shape)
        if self.inverse_uniform:
            return float(1 / rng.uniform(1 / high, 1 / low))
        return float(rng.uniform(low, high))


def draw_grid(
    info: VideoInfo, shape: Shape, grid_range: GridRange, *, rng: np.random.Generator, flip: bool
) -> Grid:
    """Draw a training grid: random stride, start, scale, crop, and mirror if ``flip`` allows it.

    The stride is an integer, uniform in ``grid_range.strides``, and frame i is exactly
    ``start + i * stride``; the official code stretches the span by up to one stride instead. The
    crop is taken in source pixels and scaled once, so short sides are not rounded.
    """
    if grid_range.segments:
        frames = _segment_frames(shape.frames, info.num_frames, rng)
    else:
        low, high = grid_range.strides(shape.frames)
        stride = _source_stride(int(rng.integers(low, high + 1)), info, grid_range)
        room = max(info.num_frames - stride * shape.frames, 0.0)
        start = rng.random() * (math.floor(room) + 1)
        frames = _frames(start, stride, shape.frames, info.num_frames)
    box_height, box_width = _box_size(info, shape, grid_range.draw_short_side(shape, rng))
    return Grid(
        frames=frames,
        box=Box(
            int(rng.integers(info.height - box_height + 1)),
            int(rng.integers(info.width - box_width + 1)),
            box_height,
            box_width,
        ),
        height=shape.height,
        width=shape.width,
        flip=bool(rng.random() < 0.5) and flip,
        frame_size=(info.height, info.width),
    )


def view_grid(info: VideoInfo, shape: Shape, grid_range: GridRange, *, view: View) -> Grid:
    """The grid of one evaluation view, at the base stride and never mirrored.

    Clips are spaced uniformly from the start of the video to its end; a single clip is its middle
    (the official Kinetics code stops a tenth before the end; the paper says uniform). One crop is
    the centre at the smallest short side; three crops scale the short side to the crop and lie
    along the longer side, as is usual for 10 x 3 views.
    """
    if grid_range.segments:
        frames = _segment_frames(shape.frames, info.num_frames, None)
    else:
        stride = _source_stride(grid_range.stride, info, grid_range)
        room = max(info.num_frames - stride * shape.frames, 0.0)
        start = room * _spaced(view.clip, view.num_clips)
        frames = _frames(start, stride, shape.frames, info.num_frames)
    if view.num_crops == 1:
        short_side = grid_range.short_sides(shape)[0]
        across = 0.5
    else:
        short_side = float(min(shape.height, shape.width))
        across = _spaced(view.crop, view.num_crops)
    box_height, box_width = _box_size(info, shape, short_side)
    tall = info.height > info.width
    top = (info.height - box_height) * (across if tall else 0.5)
    left = (info.width - box_width) * (0.5 if tall else across)
    return Grid(
        frames=frames,
        box=Box(int(top), int(left), box_height, box_width),
        height=shape.height,
        width=shape.width,
        flip=False,
        frame_size=(info.height, info.width),
    )


def grid_of_part(video: Video, grid_of: Callable[[VideoInfo], Grid]) -> Grid:
    """The grid that ``grid_of`` makes of the part that a video's line is about, in its frames."""
    frames = video.frame_range
    if len(frames) == video.num_frames:
        return grid_of(video)
    grid = grid_of(replace(video, num_frames=len(frames)))
    return replace(grid, frames=tuple(frames[k] for k in grid.frames))


def _source_stride(stride: int, info: VideoInfo, grid_range: GridRange) -> float:
    """The stride in frames of this video."""
    if grid_range.frame_rate is None:
        return float(stride)
    return stride * info.frame_rate / grid_range.frame_rate


def _spaced(k: int, n: int) -> float:
    return 0.5 if n == 1 else k / (n - 1)


def _frames(start: float, stride: float, count: int, num_frames: int) -> tuple[int, ...]:
    # 1e-9 keeps a product such as 10 * 2.4 from landing just below an integer.
    last = num_frames - 1
    return tuple(min(math.floor(start + i * stride + 1e-9), last) for i in range(count))


def _segment_frames(
    count: int, num_frames: int, rng: np.random.Generator | None
) -> tuple[int, ...]:
    """One frame of each of ``count`` equal segments: a random one, or the middle one.

    Segment edges are rounded to frames and belong to both neighbours, as in the official code, so
    a video of fewer frames than segments repeats some.
    """
    edges = [round(i * (num_frames - 1) / count) for i in range(count + 1)]
    if rng is None:
        return tuple((low + high) // 2 for low, high in pairwise(edges))
    return tuple(int(rng.integers(low, high + 1)) for low, high in pairwise(edges))


def _box_size(info: VideoInfo, shape: Shape, short_side: float) -> tuple[int, int]:
    """Height and width in source pixels of a crop of the shape at this short side.

    A frame too narrow for the crop (an extreme aspect ratio) is scaled up until it fits.
    """
    scale = max(
        short_side / min(info.height, info.width),
        shape.height / info.height,
        shape.width / info.width,
    )
    height = min(max(round(shape.height / scale), 1), info.height)
    width = min(max(round(shape.width / scale), 1), info.width)
    return height, width
