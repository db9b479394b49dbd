"""The same clips by torchcodec, if it is installed: on the CPU, or by NVDEC on a GPU.

A ``Location`` and a ``Grid`` go in; the pixels land in a given tensor, on its device. torchcodec
converts uncropped frames, so on the CPU a small crop of a large frame costs more than by PyAV.
"""

from __future__ import annotations

import io
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vcycle.data.decode.container import is_folder, source_of
from vcycle.data.decode.encode import encode_frames
from vcycle.data.decode.resample import crop_and_scale
from vcycle.data.decode.video import display_positions, read_clip
from vcycle.data.grid import Grid
from vcycle.data.metadata import Location, TookTooLong
from vcycle.schedule.messages import one_line

# 0.11 is the first that rotates frames as their files ask. Before 0.17 NVDEC gives wrong pixels,
# without an error, if videos of different sizes alternate.
_LEAST_VERSIONS = {"torchcodec": (0, 11), "nvdec": (0, 17)}


def read_clip_torchcodec(
    place: Location,
    grid: Grid,
    *,
    out: Tensor,
    all_key_frames: bool = False,
    limit_seconds: float = math.inf,
) -> bool:
    """Decode the frames of a grid into ``out``, (T, H, W, 3) uint8 RGB, on its device.

    Whether torchcodec did. They are the frames of ``read_clip``, which takes over if torchcodec
    cannot decode them: codecs that the GPU does not support, files in which it does not find
    frames by their times or whose frames it would show differently, folders of images; and on a
    GPU files of a varying frame rate. Raises UnreadableVideo as that does, and
    torch.OutOfMemoryError.
    """
    deadline = time.monotonic() + limit_seconds
    if not is_folder(place) and _decode(
        place, grid, out, all_key_frames=all_key_frames, deadline=deadline
    ):
        return True
    clip = read_clip(
        place, grid, all_key_frames=all_key_frames, limit_seconds=deadline - time.monotonic()
    )
    out.copy_(torch.from_numpy(clip))
    return False


def _decode(
    place: Location, grid: Grid, out: Tensor, *, all_key_frames: bool, deadline: float
) -> bool:
    """Whether torchcodec decoded the clip, each frame with its packet's time."""
    source = source_of(place)
    # Of a Matroska file with a varying rate NVDEC gives a later frame for the one asked for.
    wanted = display_positions(
        *(place, grid.frames),
        source=source,
        all_key_frames=all_key_frames,
        evenly_spaced=out.device.type == "cuda",
    )
    decoder = _opened(source, out.device) if wanted else None
    if decoder is None:
        return False
    for i, (position, seconds) in enumerate(wanted):
        if i and position == wanted[i - 1][0]:
            out[i] = out[i - 1]
            continue
        if time.monotonic() > deadline:
            raise TookTooLong(str(place))
        try:
            # One by one: a clip of uncropped frames may be gigabytes.
            frame = decoder.get_frame_at(position)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # PyAV tells what is wrong with the file, if anything is
            return False
        if not math.isclose(frame.pts_seconds, seconds, abs_tol=1e-9):
            return False
        out[i] = crop_and_scale(frame.data[None], grid)[0]
    return True


def _opened(source: str | io.BytesIO, device: torch.device) -> Any:
    """A decoder on this device; None if torchcodec or the GPU cannot decode the file."""
    from torchcodec.decoders import (  # type: ignore[import-not-found, unused-ignore]
        VideoDecoder,
    )

    try:
        decoder = VideoDecoder(
            source if isinstance(source, str) else source.getvalue(),
            dimension_order="NHWC",
            num_ffmpeg_threads=1,
            device=str(device),
            seek_mode="exact",
        )
    except torch.OutOfMemoryError:
        raise
    except Exception:  # PyAV tells what is wrong with the file, if anything is
        return None
    return None if decoder.cpu_fallback else decoder


def check_decoder(decoder: str, device: torch.device) -> None:
    """Raise ValueError, with what to do, if ``decoder`` does not work on this ``device``."""
    if (decoder == "nvdec") != (device.type == "cuda"):
        raise ValueError(
            f"decoder {decoder!r} on {device}: give 'nvdec' on a CUDA device, and 'pyav' or "
            f"'torchcodec' elsewhere"
        )
    if decoder == "pyav":
        return
    least = _LEAST_VERSIONS[decoder]
    try:
        _try_out(least, device)
    except Exception as error:
        raise ValueError(
            f"decoder {decoder!r}: does not work here ({one_line(error)}); install torchcodec "
            f"{least[0]}.{least[1]} or newer and what it needs, or give 'pyav'"
        ) from error


def _try_out(least: tuple[int, int], device: torch.device) -> None:
    """Decode a frame; whatever stands in the way is raised."""
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
