"""The same clips by torchcodec, where it is installed: another decoder behind the same call.

torchcodec decodes whole frames, so a small crop of a large picture costs more than by PyAV; it is
here for files that it reads better, and as a check of our own decoding.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vcycle.data.grid import Grid
from vcycle.data.manifest import Location, UnreadableVideo
from vcycle.data.resample import crop_and_scale
from vcycle.data.video import fetch


def read_clip(
    place: Location, grid: Grid, *, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """The frames of a grid, resampled: (T, H, W, 3) uint8 RGB; as ``video.read_clip``.

    Raises UnreadableVideo, and ImportError or RuntimeError where torchcodec cannot be loaded.
    """
    from torchcodec.decoders import (  # type: ignore[import-not-found, unused-ignore]
        VideoDecoder,
    )

    try:
        decoder = VideoDecoder(
            _source(place), dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="exact"
        )
        last = decoder.metadata.num_frames - 1
        frames = decoder.get_frames_at([min(frame, last) for frame in grid.frames]).data
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UnreadableVideo(str(place), reason or type(error).__name__) from error
    clip = out if out is not None else np.empty(grid.clip_shape, np.uint8)
    torch.from_numpy(clip).copy_(crop_and_scale(frames, grid))
    return clip


def _source(place: Location) -> Any:
    if not place.is_local:
        return fetch(place)
    if not os.path.isfile(place.uri):  # noqa: PTH113
        raise UnreadableVideo(str(place), "not a file")
    if place.num_bytes:
        with open(place.uri, "rb") as file:  # noqa: PTH123
            file.seek(place.offset)
            return file.read(place.num_bytes)
    return place.uri
