"""Decode videos: the frames of a sampling grid, or all frames in order.

A ``Location`` and a ``Grid`` go in; (T, H, W, 3) uint8 RGB comes out. Everything that a file can do
wrong leaves as one exception, ``UnreadableVideo``.
"""

from __future__ import annotations

import io
import itertools
import math
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange
from numpy.typing import NDArray

from vcycle.data.decode.clock import stream_clock
from vcycle.data.decode.container import is_folder, open_video
from vcycle.data.decode.frame_folder import decode_files, read_frames
from vcycle.data.decode.frame_search import MissedFrame, intact_packets, wanted_frames
from vcycle.data.decode.resample import Resampler, mirror, orientation, upright
from vcycle.data.grid import Grid
from vcycle.data.metadata import Location, TookTooLong, UnreadableVideo, VideoInfo

WAYS: tuple[dict[str, Any], ...] = (
    {"skip": True},
    {"skip": True, "back_seconds": 10.0},
    {"skip": False},
)
"""To find frames, each tried if the one before missed one: in a transport stream, which has no
index, a seek lands up to a key interval late."""
_ROUNDING_SECONDS = 0.002
"""By which gaps between frames differ at a constant rate, where times are whole milliseconds."""
_shown_alike: dict[int, bool] = {}
"""Whether decoders show a video alike, by the hash of its place: names may be a million."""


def read_clip(
    place: Location,
    grid: Grid,
    *,
    out: NDArray[np.uint8] | None = None,
    all_key_frames: bool = False,
    limit_seconds: float = math.inf,
) -> NDArray[np.uint8]:
    """Decode the frames of a grid and resample each: (T, H, W, 3) uint8 RGB.

    Frame number k is the frame on display at ``k / frame_rate`` seconds, so a variable frame rate
    is resampled to its mean. Past the last frame that decodes, that frame repeats. ``out`` receives
    the clip, if given; ``all_key_frames`` is a probe's finding that makes opening cheaper.

    Raises UnreadableVideo if no frame decodes, or decoding takes longer than ``limit_seconds``.
    """
    deadline = time.monotonic() + limit_seconds
    if is_folder(place):
        return read_frames(place.uri, grid, out=out, deadline=deadline)
    clip = out if out is not None else np.empty(grid.clip_shape, np.uint8)
    for way in WAYS:
        done = 0
        with (
            suppress(MissedFrame),
            open_video(place, all_key_frames=all_key_frames) as (container, stream),
        ):
            resample = Resampler(grid)
            for frame, repeats in wanted_frames(
                *(container, stream, stream_clock(container, stream), grid.frames),
                **way,
                deadline=deadline,
            ):
                clip[done : done + repeats] = resample(frame)
                done += repeats
            break
    if not done:
        raise UnreadableVideo(str(place), "no frame decodes")
    if grid.flip:
        mirror(clip)
    return clip


def cut_clip(frames: Sequence[Any], grid: Grid, *, out: NDArray[np.uint8]) -> None:
    """The clip that ``read_clip`` makes of a file, of all its ``stored_frames``, into ``out``."""
    resample = Resampler(grid)
    shown: Any = None
    for i, number in enumerate(grid.frames):
        frame = frames[min(number, len(frames) - 1)]
        out[i] = out[i - 1] if frame is shown else resample(frame)
        shown = frame
    if grid.flip:
        mirror(out)


def display_positions(
    place: Location,
    numbers: tuple[int, ...],
    *,
    source: str | io.BytesIO,
    all_key_frames: bool = False,
    evenly_spaced: bool = False,
) -> list[tuple[int, float]]:
    """For each frame number, which frame in display order ``read_clip`` takes, and its seconds.

    For decoders that look frames up by position. Only the first frame is decoded, once in a
    process: the times are those of the packets. The list is empty if these are not the frames'
    times (AVI has none), or are to be ``evenly_spaced`` but for rounding and are not; and if the
    first frame does not decode or others would show it differently.
    """
    with open_video(place, all_key_frames=all_key_frames, source=source) as (container, stream):
        clock = stream_clock(container, stream)
        alike = _shown_alike.get(hash(place))
        times = []
        for packet in itertools.chain(intact_packets(container, stream), (None,)):
            if packet is not None and not packet.is_discard:
                times.append(packet.pts)
            if alike is None and (frame := _first_frame(stream.codec_context, packet)) is not None:
                alike = _shown_alike[hash(place)] = _is_shown_alike(frame)
        if not alike:
            return []
        if clock.counted or not times or None in times or min(times) != clock.start:
            return []
        times.sort()
        if evenly_spaced and len(times) > 1:
            gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
            if (max(gaps) - min(gaps)) * stream.time_base > _ROUNDING_SECONDS:
                return []
        positions = [max(bisect_right(times, clock.until(number)) - 1, 0) for number in numbers]
        return [(position, float(times[position] * stream.time_base)) for position in positions]


def _first_frame(context: Any, packet: Any) -> Any:
    """The first frame that a packet completes, or at the end None; None if it completes none."""
    with suppress(av.FFmpegError):
        return next(iter(context.decode(packet)), None)
    return None


def _is_shown_alike(frame: Any) -> bool:
    """Whether decoders show a frame of a video alike.

    Only PyAV's frames are mirrored by us, and only PyAV heeds that a frame's colours have the full
    range if its format does not say so, as ``yuvj420p`` does.
    """
    is_full = frame.color_range == ColorRange.JPEG and not frame.format.name.startswith("yuvj")
    return not (is_full or orientation(frame)[0])


def stored_frames(
    place: Location, info: VideoInfo, *, limit_seconds: float = math.inf
) -> Iterator[Any]:
    """Every frame of a video in order, as stored, evenly spaced at its mean frame rate.

    Yields ``info.num_frames`` ``av.VideoFrame``s, or of a folder as many as it has files, if these
    are fewer. Raises UnreadableVideo as ``read_clip`` does.
    """
    deadline = time.monotonic() + limit_seconds
    if is_folder(place):
        for frame in itertools.islice(decode_files(place.uri), info.num_frames):
            if time.monotonic() > deadline:
                raise TookTooLong(str(place))
            yield frame
        return
    with open_video(place, all_key_frames=info.key_interval == 1) as (container, stream):
        frames = wanted_frames(
            *(container, stream, stream_clock(container, stream), range(info.num_frames)),
            skip=False,
            deadline=deadline,
        )
        for frame, repeats in frames:
            yield from itertools.repeat(frame, repeats)


def iterate_frames(place: Location, info: VideoInfo) -> Iterator[Any]:
    """The ``stored_frames`` of a video, as displayed."""
    stored = shown = None
    for frame in stored_frames(place, info):
        if frame is not stored:
            stored, shown = frame, upright(frame)
        yield shown
