"""Probe and decode video files: the only module that imports PyAV.

A path and a ``Grid`` go in; (T, H, W, 3) uint8 RGB comes out. Everything that a file can do wrong
leaves as one exception, ``UnreadableVideo``.
"""

from __future__ import annotations

import io
import math
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from typing import Any

import av
import fsspec  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from vcycle.data.frames import decode_files, read_frames
from vcycle.data.grid import Grid
from vcycle.data.manifest import Location, UnreadableVideo, VideoInfo
from vcycle.data.resample import Resampler, upright


@contextmanager
def _opened(
    place: Location,
    *,
    all_key_frames: bool = False,
    source: str | io.BytesIO | None = None,
) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream; every error inside becomes UnreadableVideo."""
    # Finding out how far pictures are reordered takes FFmpeg up to twenty decoded frames. Where
    # all are key frames there is nothing to find out, so no decoder is allowed while opening.
    options = {"codec_whitelist": "none"} if all_key_frames else {}
    try:
        source = source or source_of(place)
        with av.open(source, metadata_errors="ignore", options=options) as container:
            stream = container.streams.best("video")
            if stream is None:
                raise UnreadableVideo(str(place), "no video stream")
            # One thread a worker: the workers are the parallelism.
            stream.codec_context.thread_count = 1
            stream.codec_context.thread_type = "NONE"
            yield container, stream
    except UnreadableVideo:
        raise
    except Exception as error:  # a hostile file may provoke any
        raise UnreadableVideo(str(place), one_line(error)) from error


def source_of(place: Location) -> str | io.BytesIO:
    """What FFmpeg opens: a path, a part of a local file, or bytes fetched from elsewhere.

    Raises UnreadableVideo where nothing is there.
    """
    if not place.is_local:
        try:
            return io.BytesIO(_fetch(place))
        except Exception as error:  # of any file system
            raise UnreadableVideo(str(place), one_line(error)) from error
    if not os.path.isfile(place.uri):  # noqa: PTH113  a fifo or a device would block for ever
        reason = "not a file" if os.path.lexists(place.uri) else "not found"
        raise UnreadableVideo(str(place), reason)
    if place.num_bytes:
        end = place.offset + place.num_bytes
        return f"subfile,,start,{place.offset},end,{end},,:{place.uri}"
    return f"file:{place.uri}"  # so that no name is taken for a protocol


def _fetch(place: Location) -> bytes:
    """The bytes of a remote video, by one range read where it is part of a file."""
    filesystem, path = fsspec.core.url_to_fs(place.uri)
    end = place.offset + place.num_bytes if place.num_bytes else None
    content: bytes = filesystem.cat_file(path, start=place.offset or None, end=end)
    return content


def one_line(error: BaseException) -> str:
    """What an exception says, for people: at most 200 characters of one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]


def probe(place: Location) -> VideoInfo:
    """The facts of a file, with its first frame decoded as proof.

    Raises UnreadableVideo when there is no video stream or nothing decodes.
    """
    with _opened(place) as (container, stream):
        rate = _frame_rate(stream)
        num_frames, duration = stream.frames, None
        if stream.duration:
            duration = stream.duration * stream.time_base
        elif container.duration:
            duration = Fraction(container.duration, av.time_base)
        key_interval = _key_interval(stream)
        first = next(container.decode(stream), None)
        if first is None:
            raise UnreadableVideo(str(place), "no frame decodes")
        if not num_frames:
            num_frames = round(duration * rate) if duration else _count_frames(container, stream)
        num_frames = max(num_frames, 1)
        turned = first.rotation % 180 != 0
        return VideoInfo(
            num_frames=num_frames,
            frame_rate=float(rate),
            duration_seconds=float(duration or num_frames / rate),
            width=first.height if turned else first.width,
            height=first.width if turned else first.height,
            codec=stream.codec_context.name,
            rotation=first.rotation % 360,
            key_interval=key_interval,
        )


def _key_interval(stream: Any) -> int:
    """The longest way from one key frame to the next, if the container's index lists all frames."""
    entries = stream.index_entries
    if not stream.frames or len(entries) != stream.frames:
        return 0
    keys = [i for i, entry in enumerate(entries) if entry.is_keyframe]
    return max((b - a for a, b in pairwise([*keys, len(entries)])), default=0)


def _frame_rate(stream: Any) -> Fraction:
    rate = stream.average_rate or stream.guessed_rate or stream.base_rate
    return Fraction(rate) if rate else Fraction(25)


def _count_frames(container: Any, stream: Any) -> int:
    """Without an index or a duration the packets have to be counted; none is decoded."""
    container.seek(0)
    return sum(1 for packet in container.demux(stream) if packet.size)


def read_clip(
    place: Location,
    grid: Grid,
    *,
    out: NDArray[np.uint8] | None = None,
    all_key_frames: bool = False,
    limit_seconds: float = math.inf,
) -> NDArray[np.uint8]:
    """Decode the frames of a grid and resample each: (T, H, W, 3) uint8 RGB.

    Frame k is the picture shown at ``k / frame_rate`` seconds, so a variable frame rate is
    resampled to its mean. Past the last frame that decodes, that frame repeats.
    ``out`` receives the clip, if given;
    ``all_key_frames`` is a probe's finding that makes opening cheaper. Raises UnreadableVideo if
    no frame decodes, or when decoding takes longer than ``limit_seconds``.
    """
    if place.is_local and os.path.isdir(place.uri):  # noqa: PTH112
        return read_frames(place.uri, grid, out=out)
    deadline = time.monotonic() + limit_seconds
    clip = out if out is not None else np.empty(grid.clip_shape, np.uint8)
    done = 0
    for seek in (True, False) if grid.frames[0] > 0 else (False,):
        with _opened(place, all_key_frames=all_key_frames) as (container, stream):
            resample = Resampler(grid)
            for picture, repeats in _pictures(container, stream, grid.frames, seek, deadline):
                clip[done : done + repeats] = resample(picture)
                done += repeats
        if done:
            break  # otherwise the seek missed: the container has no index, or a wrong one
    if not done:
        raise UnreadableVideo(str(place), f"no frame decodes from frame {grid.frames[0]} on")
    clip[done:] = clip[done - 1]
    return clip


def decode_only(place: Location, grid: Grid, *, all_key_frames: bool = False) -> int:
    """Decode the frames of a grid and drop them: what ``read_clip`` costs at the least."""
    with _opened(place, all_key_frames=all_key_frames) as (container, stream):
        seek = grid.frames[0] > 0
        return sum(1 for _ in _pictures(container, stream, grid.frames, seek, math.inf))


def pictures_at(
    place: Location,
    frames: tuple[int, ...],
    *,
    source: str | io.BytesIO,
    all_key_frames: bool = False,
) -> list[tuple[int, float]]:
    """The picture that ``read_clip`` takes for each frame: its number as shown, and its seconds.

    For decoders that find pictures by number. Nothing is decoded: the times are those of the
    packets. Where these are not the pictures' times (AVI has none) the list is empty.
    """
    with _opened(place, all_key_frames=all_key_frames, source=source) as (container, stream):
        start, _, after = _times(stream, frames)
        times = [
            packet.pts
            for packet in container.demux(stream)
            if packet.size and not packet.is_discard
        ]
        if not times or None in times or min(times) != start:
            return []
        times.sort()
        numbers: list[int] = []
        for number in (bisect_right(times, time) for time in after):
            past_the_end = numbers[-1] if numbers else len(times) - 1
            numbers.append(number if number < len(times) else past_the_end)
        return [(number, float(times[number] * stream.time_base)) for number in numbers]


def iterate_pictures(place: Location, info: VideoInfo) -> Iterator[Any]:
    """Every frame of a video in order, as displayed, evenly spaced at its mean frame rate.

    Yields av.VideoFrames, ``info.num_frames`` of them unless the video ends early.
    """
    frames = tuple(range(info.num_frames))
    if place.is_local and os.path.isdir(place.uri):  # noqa: PTH112
        yield from decode_files(place.uri)
        return
    with _opened(place) as (container, stream):
        for picture, repeats in _pictures(container, stream, frames, False, math.inf):
            shown = upright(picture)
            for _ in range(repeats):
                yield shown


def _pictures(
    container: Any, stream: Any, frames: tuple[int, ...], seek: bool, deadline: float
) -> Iterator[tuple[Any, int]]:
    """The decoded pictures of the wanted frames, each with how many of them it serves.

    Fewer if the video ends early, and none if a seek went past the first wanted frame.
    """
    start, tick, after = _times(stream, frames)
    if seek:
        # Seeking goes by decoding time, which runs ahead of display by the reordering.
        early = after[0] - math.ceil(stream.codec_context.reorder_depth * tick)
        container.seek(max(early, start), stream=stream)
    done = 0
    picture = None
    for count, picture in enumerate(_decoded(container, stream, after, tick, deadline)):
        at = picture.pts if picture.pts is not None else start + count * tick
        if seek and count == 0 and at > after[0] + tick:
            return
        repeats = 0
        while done + repeats < len(after) and at > after[done + repeats]:
            repeats += 1
        if repeats:
            yield picture, repeats
        done += repeats
        if done == len(after):
            return
    if picture is not None and done == 0:
        yield picture, 1  # all the wanted frames are past the end


def _times(stream: Any, frames: tuple[int, ...]) -> tuple[int, Fraction, list[int]]:
    """By the stream's clock: its start, a frame's interval, and what each frame comes after."""
    tick = 1 / (_frame_rate(stream) * stream.time_base)
    start = stream.start_time or 0
    # A frame is the wanted one from half an interval before its time: clocks are rounded.
    return start, tick, [math.floor(start + frame * tick - tick / 2) for frame in frames]


def _decoded(
    container: Any, stream: Any, after: list[int], tick: Fraction, deadline: float
) -> Iterator[Any]:
    """Pictures in display order, with as many of the unwanted ones left undecoded as can be.

    A wanted picture is the first after each time of ``after``. Packets wait until one shows that
    the next wanted picture needs them; when a key frame comes first, they were not needed. Of
    those that are, pictures that no other refers to are skipped unless they are wanted.
    """
    context = stream.codec_context
    waiting: list[Any] = []
    wanted = 0  # the first of ``after`` whose picture has not been sent to the decoder
    for packet in container.demux(stream):
        if time.monotonic() > deadline:
            raise TimeoutError("decoding took longer than the limit")
        if not packet.size and packet.dts is not None:
            continue  # an empty packet would end the decoding
        soon = after[wanted] + tick
        if waiting and packet.is_keyframe and packet.pts is not None and packet.pts <= soon:
            yield from context.decode(None)
            context.flush_buffers()
            waiting.clear()
        if not packet.size or (packet.dts is not None and packet.dts > soon):
            for earlier in waiting:
                yield from _send(context, earlier, after, tick)
            waiting.clear()
            while wanted < len(after) and packet.size and packet.dts > after[wanted] + tick:
                wanted += 1
            if wanted == len(after) or not packet.size:
                break
        waiting.append(packet)
    yield from context.decode(None)


def _send(context: Any, packet: Any, after: list[int], tick: Fraction) -> list[Any]:
    """Decode a packet, or let the decoder skip it if neither we nor another picture needs it."""
    place = bisect_left(after, packet.pts) - 1 if packet.pts is not None else 0
    needed = packet.pts is None or (place >= 0 and packet.pts <= after[place] + tick)
    context.skip_frame = "DEFAULT" if needed else "NONREF"
    pictures: list[Any] = context.decode(packet)
    return pictures
