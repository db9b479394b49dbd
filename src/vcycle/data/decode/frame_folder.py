"""Videos kept as a folder of image files (frame_000001.jpg ...), as some datasets are distributed.

A folder goes in; its metadata or a clip comes out. The images go through the same codec library and
the same resampling as a video's frames, so that both decode to the same clip.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from vcycle.data.decode.container import DECODER_OPTIONS, MOST_PIXELS
from vcycle.data.decode.resample import Resampler, displayed_size, mirror, rotation
from vcycle.data.grid import Grid
from vcycle.data.metadata import IMAGE_SUFFIXES, TookTooLong, UnreadableVideo, VideoInfo
from vcycle.schedule.messages import one_line

_MOST_BYTES = 2**28  # of an image file
_CODECS = {b"\xff\xd8": "mjpeg", b"\x89PNG": "png", b"BM": "bmp", b"RIFF": "webp"}
"""By the first bytes of an image, four at most: some are named as another kind."""
_NUMBER = re.compile("[0-9]+")
_FLOW = re.compile("(?:flow_)?([xy])_")


def frame_files(folder: str) -> list[str]:
    """The image files' paths in the order of their names, in which 2 comes before 10.

    Hidden ones are none of them: archives of other systems add some. Nor are those of optical flow
    in x and y (``flow_x_00001.jpg``, ``y_00001.jpg``) beside others.

    Raises UnreadableVideo if the folder cannot be listed, or holds no image file.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError as error:
        raise UnreadableVideo(folder, error.strerror or str(error)) from error
    # pathlib would take longer, and this runs for every clip.
    images = [
        name
        for name in names
        if name[name.rfind(".") :].lower() in IMAGE_SUFFIXES and not name.startswith(".")
    ]
    if not images:
        raise UnreadableVideo(
            folder, f"holds no image that ends in {', '.join(sorted(IMAGE_SUFFIXES))}"
        )
    flow = {name: match[1] for name in images if (match := _FLOW.match(name))}
    if len(set(flow.values())) == 2:  # both directions: a video may be called x alone
        images = [name for name in images if name not in flow] or images
    return [f"{folder}/{name}" for name in sorted(images, key=_in_order)]


def _in_order(name: str) -> tuple[str, str]:
    return _NUMBER.sub(lambda digits: digits[0].zfill(20), name), name


def probe_frames(folder: str, *, frame_rate: float) -> VideoInfo:
    """The metadata of a folder of images; ``frame_rate`` is the dataset's, images have none.

    Raises UnreadableVideo if there is no image file, or the first does not decode.
    """
    files = frame_files(folder)
    first = _decode(files[0])
    with Path(files[0]).open("rb") as file:
        codec = _codec(file.read(4))
    height, width = displayed_size(first)  # a camera's image may be turned
    return VideoInfo(
        num_frames=len(files),
        frame_rate=frame_rate,
        duration_seconds=len(files) / frame_rate,
        width=width,
        height=height,
        codec=codec,
        rotation=rotation(first),
        key_interval=1,
    )


def read_frames(
    folder: str,
    grid: Grid,
    *,
    out: NDArray[np.uint8] | None = None,
    deadline: float = math.inf,
) -> NDArray[np.uint8]:
    """The frames of a grid, resampled: (T, H, W, 3) uint8 RGB.

    Raises UnreadableVideo if an image does not decode, and at ``deadline`` of
    ``time.monotonic()``.
    """
    files = frame_files(folder)
    clip = out if out is not None else np.empty(grid.clip_shape, np.uint8)
    resample = Resampler(grid)
    for i, number in enumerate(grid.frames):
        if time.monotonic() > deadline:
            raise TookTooLong(folder)
        if i and number == grid.frames[i - 1]:
            clip[i] = clip[i - 1]
        else:
            clip[i] = resample(_decode(files[min(number, len(files) - 1)]))
    if grid.flip:
        mirror(clip)
    return clip


def decode_files(folder: str) -> Iterator[Any]:
    """Every image of a folder as an ``av.VideoFrame``."""
    yield from map(_decode, frame_files(folder))


def _decode(file: str) -> Any:
    if not os.path.isfile(file):  # noqa: PTH113  a fifo or a device would block for ever
        raise _unreadable(file, "not a file")
    if (size := os.path.getsize(file)) > _MOST_BYTES:  # noqa: PTH202
        raise _unreadable(file, f"an image of {size:,} bytes")
    try:
        content = Path(file).read_bytes()
        codec: Any = av.CodecContext.create(_codec(content), "r")
        codec.thread_count = 1
        codec.options = DECODER_OPTIONS
        frames = codec.decode(av.Packet(content)) or codec.decode(None)
    except av.ArgumentError as error:
        reason = f"no pixels, or larger than {MOST_PIXELS:,} in all"
        raise _unreadable(file, reason) from error
    except Exception as error:
        raise _unreadable(file, one_line(error)) from error
    if not frames:
        raise _unreadable(file, "no frame decodes")
    return frames[0]


def _codec(content: bytes) -> str:
    """What decodes an image; raises ValueError if it is none of a kind that is read."""
    for first, codec in _CODECS.items():
        if content.startswith(first):
            return codec
    raise ValueError("its content is no JPEG, PNG, BMP or WebP image")


def _unreadable(file: str, reason: str) -> UnreadableVideo:
    folder, name = os.path.split(file)
    return UnreadableVideo(folder, f"{name!r}: {reason}")
