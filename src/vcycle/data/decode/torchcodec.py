"""The same clips by torchcodec, where it is installed: on the CPU, or by NVDEC on a GPU.

A place and a ``Grid`` go in; the pixels land in a tensor, on the device that it is on. torchcodec
decodes whole frames, so on the CPU a small crop of a large picture costs more than by PyAV.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vcycle.data.decode import video
from vcycle.data.decode.encode import encode_frames
from vcycle.data.decode.resample import crop_and_scale
from vcycle.data.grid import Grid
from vcycle.data.metadata import Location, UnreadableVideo, one_line

# 0.11 is the first that turns pictures as their files ask. Before 0.17 NVDEC gives wrong pixels,
# without an error, when videos of different sizes take turns.
_LEAST_VERSIONS = {"torchcodec": (0, 11), "nvdec": (0, 17)}


def read_clip(
    place: Location,
    grid: Grid,
    *,
    out: Tensor,
    all_key_frames: bool = False,
    limit_seconds: float = math.inf,
) -> None:
    """Decode the frames of a grid into ``out``, (T, H, W, 3) uint8 RGB, on its device.

    They are the frames of ``video.read_clip``, which does it where torchcodec cannot: codecs that
    the GPU has no circuit for, files whose pictures it does not find by their times, folders of
    pictures. Raises UnreadableVideo as that does, and torch.OutOfMemoryError.
    """
    deadline = time.monotonic() + limit_seconds
    is_folder = place.is_local and os.path.isdir(place.uri)  # noqa: PTH112
    if not is_folder and _decode(place, grid, out, all_key_frames=all_key_frames, until=deadline):
        return
    clip = video.read_clip(
        place, grid, all_key_frames=all_key_frames, limit_seconds=deadline - time.monotonic()
    )
    out.copy_(torch.from_numpy(clip))


def _decode(
    place: Location, grid: Grid, out: Tensor, *, all_key_frames: bool, until: float
) -> bool:
    """Whether torchcodec decoded the clip, each picture with the time that its packet has."""
    from torchcodec.decoders import (  # type: ignore[import-not-found, unused-ignore]
        VideoDecoder,
    )

    source = video.source_of(place)
    wanted = video.pictures_at(place, grid.frames, source=source, all_key_frames=all_key_frames)
    try:
        decoder = VideoDecoder(
            source if isinstance(source, str) else source.getvalue(),
            dimension_order="NHWC",
            num_ffmpeg_threads=1,
            device=str(out.device),
            seek_mode="exact",
        )
        if not wanted or decoder.cpu_fallback:
            return False
        for i, (number, seconds) in enumerate(wanted):
            if i and number == wanted[i - 1][0]:
                out[i] = out[i - 1]
                continue
            if time.monotonic() > until:
                raise UnreadableVideo(str(place), "decoding took longer than the limit")
            # One by one: whole pictures of a clip together may be gigabytes.
            picture = decoder.get_frame_at(number)
            if not math.isclose(picture.pts_seconds, seconds, abs_tol=1e-9):
                return False
            out[i] = crop_and_scale(picture.data[None], grid)[0]
    except (UnreadableVideo, torch.OutOfMemoryError):
        raise
    except Exception:  # PyAV finds out what is wrong with the file, if anything is
        return False
    return True


def check_decoder(decoder: str, device: torch.device) -> None:
    """ValueError, with what to do, unless ``decoder`` works on ``device`` of this machine."""
    if (decoder == "nvdec") != (device.type == "cuda"):
        raise ValueError(
            f"decoder is {decoder!r} on {device}; use 'nvdec' on a CUDA device, and 'pyav' or "
            f"'torchcodec' elsewhere"
        )
    if decoder == "pyav":
        return
    least = _LEAST_VERSIONS[decoder]
    try:
        _try_out(least, device)
    except Exception as error:
        raise ValueError(
            f"decoder is {decoder!r}, which does not work here ({one_line(error)}); install "
            f"torchcodec {least[0]}.{least[1]} or newer and what it needs, or use 'pyav'"
        ) from error


def _try_out(least: tuple[int, int], device: torch.device) -> None:
    """Decode a picture; whatever stands in the way is raised."""
    import torchcodec  # type: ignore[import-not-found, unused-ignore]
    from torchcodec.decoders import VideoDecoder

    major, minor = torchcodec.__version__.split(".")[:2]
    if (int(major), int(minor)) < least:
        raise RuntimeError(f"torchcodec is {torchcodec.__version__}")
    with tempfile.TemporaryDirectory(prefix="vcycle-decoder-") as folder:
        path = Path(folder) / "one.mp4"
        grey = np.full((128, 128, 3), 128, np.uint8)
        encode_frames(path, [grey], frame_rate=1, key_interval=1, quality=20)
        decoder = VideoDecoder(str(path), device=str(device))
        decoder.get_frame_at(0)
    if decoder.cpu_fallback:
        raise RuntimeError(
            f"{decoder.cpu_fallback}; a container needs NVIDIA_DRIVER_CAPABILITIES=compute,video"
        )
