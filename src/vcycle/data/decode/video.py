"""Probe and decode videos: files, parts of files, files fetched from a store, folders of pictures.

A ``Location`` goes in; its facts come out, or, with a ``Grid``, (T, H, W, 3) uint8 RGB. Everything
that a file can do wrong leaves as one exception, ``UnreadableVideo``.
"""

from __future__ import annotations

import io
import math
import os
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from itertools import pairwise
from typing import Any

import av
import fsspec  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from vcycle.data.decode.frame_folder import decode_files, read_frames
from vcycle.data.decode.frame_search import Clock, Missed, wanted_pictures, whole_packets
from vcycle.data.decode.resample import Resampler, mirror, upright
from vcycle.data.grid import Grid
from vcycle.data.metadata import Location, UnreadableVideo, VideoInfo, one_line

_LISTS = frozenset(("concat", "dash", "hls", "imf", "sdp"))  # formats that name other files
_ASK_AGAIN = (0.5, 2.0)  # seconds after which a store that failed is asked again
_MIN_FRAME_BYTES = 8  # of a file, for each of its frames; one that repeats the last takes about 20


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
        if not isinstance(source, str):  # fetched bytes may name no file and no address
            options["protocol_whitelist"] = "none"
        with av.open(source, metadata_errors="ignore", options=options) as container:
            stream = _video_stream(container)
            if container.format.name in _LISTS:
                raise UnreadableVideo(str(place), "a list of other files, not a video")
            if stream is None:
                raise UnreadableVideo(str(place), "no video stream")
            if stream.codec_context is None:
                raise UnreadableVideo(str(place), "no decoder for its codec")
            # One thread a worker: the workers are the parallelism.
            stream.codec_context.thread_count = 1
            stream.codec_context.thread_type = "NONE"
            yield container, stream
    except (UnreadableVideo, Missed):
        raise
    except Exception as error:  # a hostile file may provoke any
        raise UnreadableVideo(str(place), one_line(error)) from error


def _video_stream(container: Any) -> Any:
    """The best video stream, the cover of a song not being one."""
    cover = av.stream.Disposition.attached_pic
    best = container.streams.best("video")
    if best is None or not best.disposition & cover:
        return best
    return next((s for s in container.streams.video if not s.disposition & cover), None)


def source_of(place: Location) -> str | io.BytesIO:
    """What FFmpeg opens: a path, a part of a local file, or bytes fetched from elsewhere.

    Raises UnreadableVideo where nothing is there.
    """
    if not place.is_local:
        try:
            content = _fetch(place)
        except FileNotFoundError as error:
            raise UnreadableVideo(str(place), "not found") from error
        except Exception as error:  # of any file system
            raise UnreadableVideo(str(place), one_line(error)) from error
        if place.num_bytes and len(content) != place.num_bytes:
            raise UnreadableVideo(str(place), f"its range of the file gave {len(content)} bytes")
        return io.BytesIO(content)
    if not os.path.isfile(place.uri):  # noqa: PTH113  a fifo or a device would block for ever
        reason = "not a file" if os.path.lexists(place.uri) else "not found"
        raise UnreadableVideo(str(place), reason)
    if place.num_bytes:
        end = place.offset + place.num_bytes
        if os.path.getsize(place.uri) < end:  # noqa: PTH202  this runs for every clip
            raise UnreadableVideo(str(place), "the file ends within it")
        return f"subfile,,start,{place.offset},end,{end},,:file:{place.uri}"
    return f"file:{place.uri}"  # so that no name is taken for a protocol


def _fetch(place: Location) -> bytes:
    """The bytes of a remote video, by one range read where it is part of a file.

    A store that fails is asked three times: a moment's error must not make a video a bad one.
    """
    filesystem, path = fsspec.core.url_to_fs(place.uri)
    end = place.offset + place.num_bytes if place.num_bytes else None

    def read() -> bytes:
        content: bytes = filesystem.cat_file(path, start=place.offset or None, end=end)
        return content

    for pause in _ASK_AGAIN:
        try:
            return read()
        except (FileNotFoundError, PermissionError):
            raise
        except Exception:  # a store has errors of its own, most of which pass
            time.sleep(pause)
    return read()


def probe(place: Location) -> VideoInfo:
    """The facts of a file, with its first frame decoded as proof and its end looked for.

    A file that was cut off counts the frames that are there, whatever its header promises. Raises
    UnreadableVideo when there is no video stream or nothing decodes.
    """
    with _opened(place) as (container, stream):
        rate = _frame_rate(stream)
        key_interval = _key_interval(stream)
        first = next(container.decode(stream), None)
        if first is None:
            raise UnreadableVideo(str(place), "no frame decodes")
        num_frames = _num_indexed(container, stream) or _num_frames_to_end(container, stream)
        seconds = num_frames / rate
        if num_frames == stream.frames and stream.duration:
            seconds = stream.duration * stream.time_base
        turned = first.rotation % 180 != 0
        return VideoInfo(
            num_frames=num_frames,
            frame_rate=float(rate),
            duration_seconds=float(seconds),
            width=first.height if turned else first.width,
            height=first.width if turned else first.height,
            codec=stream.codec_context.name,
            rotation=first.rotation % 360,
            key_interval=key_interval,
        )


def _clock(container: Any, stream: Any) -> Clock:
    # An AVI stores no times of display, which may differ from the order in the file; those of a
    # program stream come out wrong after a seek and at open groups of pictures; a bare stream has
    # none at all.
    context = stream.codec_context
    may_reorder = context.reorder_depth > 0 or context.name in ("h264", "hevc")
    counted = (
        container.format.name == "mpeg"
        or (container.format.name == "avi" and may_reorder)
        or stream.start_time is None
    )
    tick = 1 / (_frame_rate(stream) * stream.time_base)
    return Clock(stream.start_time or 0, tick, counted)


def _frame_rate(stream: Any) -> Fraction:
    rate = stream.average_rate or stream.guessed_rate or stream.base_rate
    return Fraction(rate) if rate else Fraction(25)


def _has_index(stream: Any) -> bool:
    """Whether the container's index lists every frame."""
    return bool(stream.frames) and len(stream.index_entries) == stream.frames


def _key_interval(stream: Any) -> int:
    """The longest way from one key frame to the next, if that can be told without reading."""
    if not _has_index(stream):
        return 0
    entries = stream.index_entries
    keys = [i for i, entry in enumerate(entries) if entry.is_keyframe]
    return max((b - a for a, b in pairwise([*keys, len(entries)])), default=0)


def _num_indexed(container: Any, stream: Any) -> int:
    """How many frames of the container's index lie within the file; 0 without an index."""
    if not _has_index(stream):
        return 0
    size = container.size
    return sum(
        entry.pos + entry.size <= size and not entry.is_discard for entry in stream.index_entries
    )


def _num_frames_to_end(container: Any, stream: Any) -> int:
    """The frames up to the last packet that can be read, looked for from the claimed end."""
    clock = _clock(container, stream)
    if not clock.counted:
        claimed = stream.duration or 0
        if not claimed and container.duration:
            claimed = math.ceil(Fraction(container.duration, av.time_base) / stream.time_base)
        ahead = math.ceil(2 * (1 + stream.codec_context.reorder_depth) * clock.tick)
        for position in (clock.start + claimed - ahead, clock.start):
            with suppress(av.FFmpegError):
                container.seek(position, stream=stream)
                packets = whole_packets(container, stream)
                times = [_shown_at(packet) for packet in packets if not packet.is_discard]
                known = [time for time in times if time is not None]
                if known:
                    num_frames = max(1, round((max(known) - clock.start) / clock.tick) + 1)
                    if num_frames * _MIN_FRAME_BYTES <= container.size:
                        return num_frames
                    break  # a time is wrong, as where recordings were joined
    with suppress(av.FFmpegError):
        container.seek(0)
    return max(1, sum(1 for _ in whole_packets(container, stream)))


def _shown_at(packet: Any) -> int | None:
    time: int | None = packet.dts if packet.pts is None else packet.pts
    return time


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
    resampled to its mean. Past the last picture that decodes, that picture repeats. ``out``
    receives the clip, if given; ``all_key_frames`` is a probe's finding that makes opening cheaper.
    Raises UnreadableVideo if no frame decodes, or when decoding takes longer than
    ``limit_seconds``.
    """
    deadline = time.monotonic() + limit_seconds
    if place.is_local and os.path.isdir(place.uri):  # noqa: PTH112
        return read_frames(place.uri, grid, out=out, deadline=deadline)
    clip = out if out is not None else np.empty(grid.clip_shape, np.uint8)
    for sparing in (True, False):
        done = 0
        with suppress(Missed), _opened(place, all_key_frames=all_key_frames) as (container, stream):
            resample = Resampler(grid)
            for picture, repeats in wanted_pictures(
                *(container, stream, _clock(container, stream), grid.frames),
                sparing=sparing,
                deadline=deadline,
            ):
                clip[done : done + repeats] = resample(picture)
                done += repeats
            break
    if not done:
        raise UnreadableVideo(str(place), "no frame decodes")
    if grid.flip:
        mirror(clip)
    return clip


def decode_only(place: Location, grid: Grid, *, all_key_frames: bool = False) -> int:
    """Decode the frames of a grid and drop them: what ``read_clip`` costs at the least."""
    for sparing in (True, False):
        with suppress(Missed), _opened(place, all_key_frames=all_key_frames) as (container, stream):
            wanted = *(container, stream, _clock(container, stream)), grid.frames
            return sum(1 for _ in wanted_pictures(*wanted, sparing=sparing))
    return 0


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
        clock = _clock(container, stream)
        packets = whole_packets(container, stream)
        times = [packet.pts for packet in packets if not packet.is_discard]
        if clock.counted or not times or None in times or min(times) != clock.start:
            return []
        times.sort()
        numbers = [max(bisect_right(times, clock.until(frame)) - 1, 0) for frame in frames]
        return [(number, float(times[number] * stream.time_base)) for number in numbers]


def iterate_pictures(place: Location, info: VideoInfo) -> Iterator[Any]:
    """Every frame of a video in order, as displayed, evenly spaced at its mean frame rate.

    Yields av.VideoFrames, ``info.num_frames`` of them.
    """
    frames = range(info.num_frames)
    if place.is_local and os.path.isdir(place.uri):  # noqa: PTH112
        yield from map(upright, decode_files(place.uri))
        return
    with _opened(place) as (container, stream):
        for picture, repeats in wanted_pictures(
            container, stream, _clock(container, stream), frames, sparing=False
        ):
            shown = upright(picture)
            for _ in range(repeats):
                yield shown
