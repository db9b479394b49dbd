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
    if not isinstance(clip, Tensor | np.ndarray):
        raise TypeError(
            f"clip {type(clip).__name__}: give decoded frames as one tensor or array, uint8 RGB "
            f"of shape (T, H, W, 3)"
        )
    is_bytes = clip.dtype in (torch.uint8, np.uint8)
    if not is_bytes or clip.ndim != 4 or clip.shape[3] != 3 or not len(clip):
        raise ValueError(
            f"clip {clip.dtype} {tuple(clip.shape)}: give decoded frames, uint8 RGB of shape "
            f"(T, H, W, 3){_conversion(clip)}"
        )
    if grid_range is not None and grid_range.frame_rate is not None and frame_rate is None:
        raise ValueError(
            f"frame_rate: the grid range counts frames at {grid_range.frame_rate:g} a second; give "
            f"to_shape the video's own frame_rate"
        )
    num_frames, height, width, _ = clip.shape
    info = VideoInfo(
        num_frames=num_frames,
        frame_rate=frame_rate or 1.0,
        duration_seconds=num_frames / (frame_rate or 1.0),
        width=width,
        height=height,
    )
    return _sample(clip, request.grid(info, grid_range, flip=flip), request)


def _conversion(clip: Tensor | NDArray[Any]) -> str:
    """What to write for floats from 0 to 1, and for channels in another place."""
    is_tensor = isinstance(clip, Tensor)
    written = "clip"
    if "float" in str(clip.dtype):
        if not len(clip) or clip.min() < 0 or clip.max() > 1:
            return ""
        to_bytes = "to(torch.uint8)" if is_tensor else "astype(numpy.uint8)"
        written = f"(clip * 255).round().{to_bytes}"
    if clip.ndim == 4 and clip.shape[3] != 3 and 3 in clip.shape[:2]:
        order = "0, 2, 3, 1" if clip.shape[1] == 3 else "1, 2, 3, 0"
        written += f".{'permute' if is_tensor else 'transpose'}({order})"
    return f"; here: {written}" if written != "clip" else ""


def _sample(clip: Tensor | NDArray[np.uint8], grid: Grid, request: ClipRequest) -> Tensor:
    """(T, H, W, 3) -> (t, h, w, 3)"""
    if isinstance(clip, Tensor):
        frames = clip[torch.tensor(grid.frames, device=clip.device)]
    else:  # a copy of few frames, though the array be mirrored or of a file that is mapped
        frames = torch.from_numpy(np.ascontiguousarray(clip[list(grid.frames)]))
    pixels: Any = crop_and_scale(frames, grid).contiguous()
    pixels.request = request
    return torch.as_tensor(pixels)


def request_of(pixels: Any) -> ClipRequest | None:
    """The request that ``to_shape`` made these very pixels for."""
    request = getattr(pixels, "request", None)
    return request if isinstance(request, ClipRequest) else None
