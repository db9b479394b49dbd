"""The same clip from other libraries, each by its fastest documented way.

A path and a grid go in, (T, H, W, 3) uint8 pixels come out. The libraries decode full frames on one
thread; torch crops and scales them.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vcycle.data.decode.resample import crop_and_scale
from vcycle.data.grid import Grid
from vcycle.data.metadata import VideoInfo


def _resample(frames: torch.Tensor, grid: Grid) -> NDArray[np.uint8]:
    """(T, H, W, 3) uint8 full frames -> the grid's crop, scaled and mirrored."""
    pixels: NDArray[np.uint8] = crop_and_scale(frames, grid).contiguous().numpy()
    return pixels


def _decord(path: str, info: VideoInfo, grid: Grid) -> NDArray[np.uint8]:
    import decord  # type: ignore[import-not-found, unused-ignore]

    reader = decord.VideoReader(path, num_threads=1)
    frames = reader.get_batch(list(grid.frames)).asnumpy()
    return _resample(torch.from_numpy(frames), grid)


def _torchcodec(path: str, info: VideoInfo, grid: Grid) -> NDArray[np.uint8]:
    from torchcodec.decoders import (  # type: ignore[import-not-found, unused-ignore]
        VideoDecoder,
    )

    decoder = VideoDecoder(
        path, seek_mode="approximate", num_ffmpeg_threads=1, dimension_order="NHWC"
    )
    frames: torch.Tensor = decoder.get_frames_at(list(grid.frames)).data
    return _resample(frames, grid)


def _pytorchvideo(path: str, info: VideoInfo, grid: Grid) -> NDArray[np.uint8]:
    from pytorchvideo.data.encoded_video import (  # type: ignore[import-not-found, unused-ignore]
        EncodedVideo,
    )

    first, last = grid.frames[0], grid.frames[-1] + 1
    video: Any = EncodedVideo.from_path(path, decode_audio=False)
    clip = video.get_clip(first / info.frame_rate, last / info.frame_rate)["video"]  # (3, T, H, W)
    wanted = torch.tensor(grid.frames) - first
    frames = clip[:, wanted.clamp(max=clip.shape[1] - 1)].to(torch.uint8).permute(1, 2, 3, 0)
    return _resample(frames, grid)


def is_usable(name: str) -> bool:
    """Whether a peer and the libraries that it loads are installed."""
    try:
        importlib.import_module(_MODULES[name])
    except (ImportError, RuntimeError, OSError):  # one of its shared libraries is missing
        return False
    return True


_MODULES = {
    "decord": "decord",
    "torchcodec": "torchcodec.decoders",
    "pytorchvideo": "pytorchvideo.data.encoded_video",
}
PEERS = {"decord": _decord, "torchcodec": _torchcodec, "pytorchvideo": _pytorchvideo}
