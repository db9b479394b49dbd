"""Write H.264 files that decode fast, the same bytes for the same frames.

For the generated videos, whose frames come as arrays, and for prepared ones, whose frames come
from another file.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray


def encode_frames(
    path: Path,
    frames: Iterable[NDArray[np.uint8]],
    *,
    frame_rate: int,
    key_interval: int,
    quality: int,
) -> None:
    """Encode (H, W, 3) RGB frames of even height and width; ``quality`` is x264's CRF."""
    encode_video_frames(
        path,
        (av.VideoFrame.from_ndarray(rgb, format="rgb24") for rgb in frames),
        frame_rate=Fraction(frame_rate),
        key_interval=key_interval,
        quality=quality,
        preset="ultrafast",
    )


def encode_video_frames(
    path: Path,
    frames: Iterable[Any],
    *,
    frame_rate: Fraction,
    key_interval: int,
    quality: int,
    preset: str,
) -> int:
    """Encode ``av.VideoFrame``s, all of the first one's size, evenly spaced; returns their number.

    No B-frames, no CABAC, no deblocking, and a key frame every ``key_interval`` frames: the
    cheapest to decode. The index is at the front of the file, for range reads.
    """
    container_options = {"fflags": "+bitexact", "movflags": "+faststart"}
    count = 0
    with av.open(str(path), "w", format="mp4", container_options=container_options) as container:
        stream: Any = None
        for frame in frames:
            if stream is None:
                # One thread: x264's output depends on their number.
                options = {
                    "preset": preset,
                    "tune": "fastdecode",
                    "crf": str(quality),
                    "threads": "1",
                    "x264-params": f"keyint={key_interval}:scenecut=0:bframes=0",
                }
                stream = container.add_stream("libx264", rate=frame_rate, options=options)
                stream.height, stream.width = frame.height, frame.width
                stream.pix_fmt = "yuv420p"
                stream.codec_context.color_range = frame.color_range
                stream.codec_context.colorspace = frame.colorspace
            planar = frame.reformat(format="yuv420p", threads=1)
            planar.pts, planar.time_base, planar.pict_type = count, 1 / frame_rate, 0
            container.mux(stream.encode(planar))
            count += 1
        if stream is not None:
            container.mux(stream.encode(None))
    return count
