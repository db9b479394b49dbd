"""Ideas that a study tries and the product does not have: each changes runs while it lasts.

In: the name of a trial, which a method of a study's file gives. Out: a context in which the
product trains in the changed way; after it, the product is as it was. What is changed is code of
this process: runs decode in it (``num_workers`` 0), as the published study's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor

from vcycle.data.dataset import Clip, ClipDataset
from vcycle.data.grid import GridRange
from vcycle.data.request import ClipRequest
from vcycle.schedule.phases import Phase
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape

Trial = Literal[
    "phase-warmup", "low-frequency", "base-stride", "same-span", "same-crop", "same-view"
]

RAMP_SHARE = 0.05
"""Of a phase's steps: those in which its rate rises, at least one."""
RAMP_START = 0.1
"""The fraction of its scheduled rate from which it rises."""


def during(trial: Trial | None) -> AbstractContextManager[None]:
    """The context of a trial; None changes nothing."""
    if trial is None:
        return nullcontext()
    match trial:
        case "phase-warmup":
            return phase_warmup()
        case "low-frequency":
            return low_frequency()
        case "base-stride":
            return one_stride(0)
        case "same-span":
            return one_stride(1)
        case "same-crop":
            return same_crop()
        case "same-view":
            return same_view()


@contextmanager
def phase_warmup() -> Iterator[None]:
    """Every phase after the first begins with a line from a tenth of its rate up to all of it.

    The line takes a twentieth of the phase's steps and multiplies the scheduled rate, whatever
    that does there. The warm-up of the run itself, in the first phase, stays.
    """
    scheduled = Plan._learning_rate

    def ramped(plan: Plan, index: int, phase: Phase) -> float:
        steps = max(1, round(RAMP_SHARE * phase.steps))
        done = (index - phase.first_step) / steps
        rate = scheduled(plan, index, phase)
        if phase.first_step == 0 or done >= 1:
            return rate
        return rate * (RAMP_START + (1 - RAMP_START) * done)

    with patch.object(Plan, "_learning_rate", ramped):
        yield


@contextmanager
def low_frequency() -> Iterator[None]:
    """Coarse clips are the low frequencies of full-resolution ones (EfficientTrain++).

    Every t x h x w clip is drawn at t x H x W, H x W being the baseline's, and keeps the middle
    h x w of each frame's spectrum. So its crop is one of the full grid's, where the product also
    takes smaller spans of the video, down to h x w pixels at the largest scale. Frames are drawn as
    ever.
    """
    read = ClipDataset.read

    def cropped(
        dataset: ClipDataset, request: ClipRequest, *, out: Tensor | None = None, **others: Any
    ) -> Clip:
        base, shape = dataset.grid_range.base, request.shape
        if (shape.height, shape.width) == (base.height, base.width):
            return read(dataset, request, out=out, **others)
        full = replace(request, shape=Shape(shape.frames, base.height, base.width))
        clip = read(dataset, full, **others)
        pixels = low_frequencies(clip.pixels, height=shape.height, width=shape.width)
        pixels = pixels if out is None else out.copy_(pixels)
        return replace(clip, pixels=pixels, request=request)

    with patch.object(ClipDataset, "read", cropped):
        yield


@contextmanager
def one_stride(end: Literal[0, 1]) -> Iterator[None]:
    """Clips of fewer frames have one stride: the least or the greatest of those that are drawn.

    That is the baseline's, so that they show less of a video, or the one at which they span as
    much as its clips (paper, section 4).
    """
    drawn = GridRange.strides

    def strides(grid_range: GridRange, frames: int) -> tuple[int, int]:
        stride = drawn(grid_range, frames)[end]
        return stride, stride

    with patch.object(GridRange, "strides", strides):
        yield


@contextmanager
def same_crop() -> Iterator[None]:
    """Coarse clips span as much of each frame as the baseline's.

    The short side of an h x w crop lies in the baseline's interval times h/H, where the product's
    has the baseline's own upper end, and so crops down to h x w pixels of it.
    """

    def short_sides(grid_range: GridRange, shape: Shape) -> tuple[float, float]:
        low, high = grid_range.short_side
        ratio = max(shape.height / grid_range.base.height, shape.width / grid_range.base.width)
        return low * ratio, high * ratio

    with patch.object(GridRange, "short_sides", short_sides):
        yield


@contextmanager
def same_view() -> Iterator[None]:
    """Coarse clips span as much of a video as the baseline's, in time and in space."""
    with one_stride(1), same_crop():
        yield


def low_frequencies(frames: Tensor, *, height: int, width: int) -> Tensor:
    """(T, H, W, 3) uint8 -> (T, height, width, 3) uint8: the middle of each frame's spectrum.

    The mean of a frame is kept; what the inverse leaves outside of 0 to 255 is clamped.
    """
    _, full_height, full_width, _ = frames.shape
    top, left = full_height // 2 - height // 2, full_width // 2 - width // 2
    spectrum = torch.fft.fftshift(torch.fft.fft2(frames.float(), dim=(1, 2)), dim=(1, 2))
    spectrum = spectrum[:, top : top + height, left : left + width]  # (T, height, width, 3)
    images = torch.fft.ifft2(torch.fft.ifftshift(spectrum, dim=(1, 2)), dim=(1, 2)).real
    images *= height * width / (full_height * full_width)
    clip: Tensor = images.round_().clamp_(0, 255).to(torch.uint8)
    return clip
