"""Small real video files for the tests: each frame says which one it is."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

KINDS = {
    "b-frames": ("mp4", "libx264", {"bf": "3", "x264-params": "b-pyramid=normal"}),
    "open-gop": ("mkv", "libx264", {"bf": "3", "x264-params": "open-gop=1"}),
    "no-reorder": ("mp4", "libx264", {"bf": "0"}),
    "intra": ("mp4", "libx264", {"x264-params": "keyint=1"}),
    "hevc": ("mp4", "libx265", {"x265-params": "log-level=none:open-gop=1:bframes=3"}),
    "vp9": ("webm", "libvpx-vp9", {}),
    "mpeg4": ("avi", "mpeg4", {"b": "4000000"}),
    "mpeg-ts": ("ts", "libx264", {"bf": "2"}),
    "av1": ("mp4", "libsvtav1", {"crf": "20", "preset": "10"}),
    "av1-webm": ("webm", "libsvtav1", {"crf": "20", "preset": "10"}),
    "avi-b-frames": ("avi", "libx264", {"bf": "3"}),
    "avi-intra": ("avi", "libx264", {"x264-params": "keyint=1", "bf": "0"}),
    "program-stream": ("mpg", "mpeg2video", {"bf": "2", "b": "4000000"}),
    "program-stream-1": ("mpg", "mpeg1video", {"bf": "2", "b": "4000000"}),
    "flv": ("flv", "libx264", {"bf": "2"}),
    # Its key frames are places to begin recovering from.
    "intra-refresh": ("mp4", "libx264", {"x264-params": "intra-refresh=1"}),
    "intra-refresh-ts": ("ts", "libx264", {"x264-params": "intra-refresh=1"}),
    "wmv": ("wmv", "wmv2", {"b": "4000000"}),
}
"""Kinds of video files: suffix, codec and options of the encoder."""


def numbered_frames(num_frames: int, height: int = 64, width: int = 96) -> np.ndarray:
    """(T, H, W, 3) RGB: grey level tells the frame, a gradient and a bright corner the place."""
    y, x = np.mgrid[:height, :width]
    frames = np.zeros((num_frames, height, width, 3), np.uint8)
    for k in range(num_frames):
        frames[k] = _level(k, num_frames)
        frames[k, ..., 0::2] //= 2
        frames[k, ..., 0] += (50 * x / width).astype(np.uint8)
        frames[k, ..., 2] += (50 * y / height).astype(np.uint8)
        frames[k, : height // 4, : width // 4, 1] = 250
    return frames


def _level(k: int, num_frames: int) -> int:
    return 20 + 200 * k // max(num_frames - 1, 1)


def moving_noise(num_frames: int) -> np.ndarray:
    """Frames that no two codecs' predictions make alike."""
    rng = np.random.default_rng(0)
    frames = numbered_frames(num_frames).astype(int)
    frames += rng.integers(-20, 20, (num_frames, 8, 12, 1)).repeat(8, 1).repeat(8, 2)
    return np.clip(frames, 0, 255).astype(np.uint8)


@contextmanager
def _same_priority() -> Iterator[None]:
    """SVT-AV1 makes its process a real-time one if it may, which starves all others."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def encode(
    path: Path,
    frames: np.ndarray,
    *,
    rate: int | Fraction = 10,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    gop: int = 12,
    options: dict[str, str] | None = None,
    times: list[float] | None = None,
    container_options: dict[str, str] | None = None,
) -> Path:
    """Encode (T, H, W, 3) RGB; ``times`` gives each frame's seconds (variable frame rate)."""
    default = {"crf": "8", "preset": "veryfast"} if codec == "libx264" else {}
    with _same_priority(), av.open(str(path), "w", options=container_options) as container:
        stream = container.add_stream(codec, rate=rate, options=default | (options or {}))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pix_fmt
        stream.codec_context.gop_size = gop
        stream.codec_context.thread_count = 1
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for k, rgb in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            if times is not None:
                frame.pts = round(times[k] * 1000)
                frame.time_base = Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def encode_combed(path: Path, num_frames: int = 4) -> Path:
    """Interlaced video of grey, 144 x 96: one field is dark and the other is bright."""
    frames = np.full((num_frames, 96, 144, 3), 40, np.uint8)
    frames[:, 1::2] = 200
    options = {"flags": "+ildct+ilme", "x264-params": "interlaced=1:tff=1"}
    return encode(path, frames, options=options)


def encode_combed_dv(path: Path, num_frames: int = 4) -> Path:
    """The same in NTSC DV, 720 x 480 in yuv411p, which is interlaced whatever it shows."""
    combed = np.full((480, 720, 3), 40, np.uint8)
    combed[1::2] = 200
    with av.open(str(path), "w") as container:
        stream = container.add_stream("dvvideo", rate=Fraction(30000, 1001))
        stream.width, stream.height, stream.pix_fmt = 720, 480, "yuv411p"
        for _ in range(num_frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(combed, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def frame_number(frame: np.ndarray, num_frames: int) -> int:
    """Which of ``numbered_frames`` a resampled frame is."""
    height, width = frame.shape[:2]
    level = frame[height // 2 :, width // 2 :, 1].mean()
    levels = [_level(k, num_frames) for k in range(num_frames)]
    return int(np.abs(np.array(levels) - level).argmin())


def rotate_display(path: Path, turns: int, *, mirrored: bool = False) -> Path:
    """Make players turn an mp4 by quarters counter-clockwise, in its track's display matrix.

    Once they have mirrored it, left to right, if it is ``mirrored``.
    """
    content = bytearray(path.read_bytes())
    cosine, sine = ((1, 0), (0, 1), (-1, 0), (0, -1))[turns]
    one = 1 << 16
    identity = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, 1 << 30)
    across = -one if mirrored else one
    turned = struct.pack(
        ">9i", cosine * across, -sine * across, 0, sine * one, cosine * one, 0, 0, 0, 1 << 30
    )
    place = content.rindex(identity)  # the first one is the movie header's
    content[place : place + len(turned)] = turned
    path.write_bytes(content)
    return path
