"""From the decoded frames of a video to a requested clip, for datasets of one's own.

Frames of any size and a ClipRequest go in; pixels of exactly the request's shape come out, sampled
as the project's own dataset samples them (paper, section 4): one grid, drawn from the request's
seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcycle.data.decode.resample import crop_and_scale
from vcycle.data.grid import Grid, GridRange
from vcycle.data.metadata import VideoInfo
from vcycle.data.request import ClipRequest, check_request


def to_shape(
    clip: Tensor | NDArray[np.uint8],
    request: ClipRequest,
    grid_range: GridRange | None = None,
    *,
    frame_rate: float | None = None,
    flip: bool = True,
) -> Tensor:
    """Sample a decoded video, or a stretch of it, at the shape that a request asks for.

    ``clip``: (T, H, W, 3) uint8 RGB of any T, H and W, on the CPU or a GPU. Returns (t, h, w, 3)
    uint8 on the same device, t x h x w being ``request.shape``. The frames have a random stride
    from [s, s T / t], the crop a random scale and place, and one of two clips is mirrored if
    ``flip``; the request's seed decides. A view's grid is fixed instead. Pixels are scaled
    bilinearly, antialiased.

    ``grid_range`` gives the base stride s and the interval of short sides; by default s is 1, and
    the interval the paper's 256 to 340 pixels for crops of 224, scaled to the plan's base shape. If
    it counts frames at a rate, ``frame_rate`` is the video's own.

    To decode no more than is needed, ask ``request.grid(info, grid_range)`` for the frames first.

    The result remembers its request, for ``collate``; what is computed from it does not. A dataset
    that changes it further returns ``vcycle.Clip(pixels, label, request)``.

    Raises ValueError if ``clip`` has another dtype or number of dimensions, or no frame; TypeError
    if it is neither a tensor nor an array.
    """
    check_request(request)
    frames = _as_tensor(clip)
    if frames.dtype != torch.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not len(frames):
        raise ValueError(
            f"clip {frames.dtype} {tuple(frames.shape)}: give decoded frames, uint8 RGB of shape "
            f"(T, H, W, 3)"
        )
    if grid_range is not None and grid_range.frame_rate is not None and frame_rate is None:
        raise ValueError(
            f"frame_rate: the grid range counts frames at {grid_range.frame_rate:g} a second; give "
            f"to_shape the video's own frame_rate"
        )
    num_frames, height, width, _ = frames.shape
    info = VideoInfo(
        num_frames=num_frames,
        frame_rate=frame_rate or 1.0,
        duration_seconds=num_frames / (frame_rate or 1.0),
        width=width,
        height=height,
    )
    return _sample(frames, request.grid(info, grid_range, flip=flip), request)


def _as_tensor(clip: Any) -> Tensor:
    """Without a copy where torch can share the memory: not of arrays that are mirrored."""
    if isinstance(clip, Tensor):
        return clip
    if not isinstance(clip, np.ndarray):
        raise TypeError(
            f"clip {type(clip).__name__}: give decoded frames as one tensor or array, uint8 RGB "
            f"of shape (T, H, W, 3)"
        )
    readable = clip.flags.writeable and all(stride >= 0 for stride in clip.strides)
    return torch.from_numpy(clip if readable else clip.copy())


def _sample(frames: Tensor, grid: Grid, request: ClipRequest) -> Tensor:
    """(T, H, W, 3) -> (t, h, w, 3)"""
    numbers = torch.tensor(grid.frames, device=frames.device)
    pixels: Any = crop_and_scale(frames[numbers], grid).contiguous()
    pixels.request = request
    return torch.as_tensor(pixels)


def request_of(pixels: Any) -> ClipRequest | None:
    """The request that ``to_shape`` made these very pixels for."""
    request = getattr(pixels, "request", None)
    return request if isinstance(request, ClipRequest) else None
