"""Probe a video: what an index needs to know about it, without decoding more than one frame.

A ``Location`` goes in; a ``VideoInfo`` comes out, or ``UnreadableVideo`` is raised.
"""

from __future__ import annotations

import math
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise
from typing import Any

import av

from vcycle.data.decode.clock import stream_clock, stream_frame_rate
from vcycle.data.decode.container import is_folder, open_video
from vcycle.data.decode.frame_folder import probe_frames
from vcycle.data.decode.frame_search import intact_packets
from vcycle.data.decode.resample import displayed_size, rotation
from vcycle.data.metadata import FOLDER_FRAME_RATE, Location, UnreadableVideo, VideoInfo

_MIN_FRAME_BYTES = 8  # in the file for each frame; one that repeats the last takes about 20
_MOST_SCANNED = 2**30  # bytes of a transport stream that are looked through for a second recording
_BACK_SECONDS = 0.1  # by which times go back where another recording begins


def probe(place: Location, *, folder_frame_rate: float = FOLDER_FRAME_RATE) -> VideoInfo:
    """The metadata of a file, with its first frame decoded as proof and its end looked up.

    In a file that was cut off, the frames that are there count, whatever its header promises. A
    folder of images has ``folder_frame_rate``. Raises UnreadableVideo if there is no video stream,
    nothing decodes, or the times begin again in the middle.
    """
    if is_folder(place):
        return probe_frames(place.uri, frame_rate=folder_frame_rate)
    with open_video(place) as (container, stream):
        rate = stream_frame_rate(stream)
        key_interval = _key_interval(stream)
        first = next(container.decode(stream), None)
        if first is None:
            raise UnreadableVideo(str(place), "no frame decodes")
        num_frames = (
            _num_indexed(container, stream)
            or _num_until_end(place, container, stream)
            or _num_packets(place, container, stream)
        )
        height, width = displayed_size(first)
        return VideoInfo(
            num_frames=num_frames,
            frame_rate=float(rate),
            duration_seconds=float(num_frames / rate),
            width=width,
            height=height,
            codec=stream.codec_context.name,
            rotation=rotation(first),
            key_interval=key_interval,
        )


def _has_index(stream: Any) -> bool:
    """Whether the container's index lists every frame."""
    return bool(stream.frames) and len(stream.index_entries) == stream.frames


def _key_interval(stream: Any) -> int:
    """The most frames from one key frame to the next; 0 if that takes reading the file."""
    if not _has_index(stream):
        return 0
    entries = stream.index_entries
    keys = [i for i, entry in enumerate(entries) if entry.is_keyframe]
    return max((b - a for a, b in pairwise([*keys, len(entries)])), default=0)


def _num_indexed(container: Any, stream: Any) -> int:
    """How many frames of the container's index lie within the file.

    0 without an index, and if an edit list hides some: the mean rate, by which the others would be
    counted, is that of all.
    """
    entries = stream.index_entries
    if not _has_index(stream) or any(entry.is_discard for entry in entries):
        return 0
    size = container.size
    return sum(entry.pos + entry.size <= size for entry in entries)


def _num_until_end(place: Location, container: Any, stream: Any) -> int:
    """The frames up to the last readable packet, searched from the claimed end.

    0 if there are no times, or wrong ones. Raises UnreadableVideo for recordings that were joined.
    """
    clock = stream_clock(container, stream)
    if clock.counted:
        return 0
    # Seek to the claimed end, then to the start, until there are packets that tell a time.
    claimed = stream.duration or 0
    if not claimed and container.duration:
        claimed = math.ceil(Fraction(container.duration, av.time_base) / stream.time_base)
    ahead = math.ceil(2 * (1 + stream.codec_context.reorder_depth) * clock.tick)
    known: list[int] = []
    for position in (clock.start + claimed - ahead, clock.start):
        with suppress(av.FFmpegError):
            container.seek(position, stream=stream)
            packets = intact_packets(container, stream)
            times = [_display_time(packet) for packet in packets if not packet.is_discard]
            known = [time for time in times if time is not None]
        if known:
            break
    num_frames = max(1, round((max(known) - clock.start) / clock.tick) + 1) if known else 0
    if num_frames * _MIN_FRAME_BYTES > container.size:
        return 0  # a time is wrong
    if num_frames and container.format.name == "mpegts":
        _check_one_recording(place, container, stream, num_frames=num_frames)
    return num_frames


def _check_one_recording(place: Location, container: Any, stream: Any, *, num_frames: int) -> None:
    """Raise UnreadableVideo for a file of several, whose times begin again where they were joined.

    It has more frames than times, and which of two is meant by a time is left to chance.
    """
    if container.size > _MOST_SCANNED:
        return
    times: list[int] = []
    with suppress(av.FFmpegError):
        container.seek(stream.start_time, stream=stream)
        packets = intact_packets(container, stream)
        times.extend(packet.dts for packet in packets if packet.dts is not None)
    back = _BACK_SECONDS / stream.time_base
    # Two after two: a time may be damaged.
    begins_again = any(
        max(times[i : i + 2]) < min(times[i - 2 : i]) - back for i in range(2, len(times) - 1)
    )
    if begins_again and len(times) > num_frames:
        raise UnreadableVideo(
            str(place),
            "its times begin again in the middle, as in recordings that were joined; write it anew "
            "with ffmpeg -i FILE -c copy NEW.mp4",
        )


def _num_packets(place: Location, container: Any, stream: Any) -> int:
    """A frame for each packet; more if an index says when each begins, and some were dropped."""
    clock = stream_clock(container, stream)
    try:
        container.seek(0)
    except av.FFmpegError:  # a raw stream: what was read so far is gone
        with open_video(place) as (again, its_stream):
            return max(1, sum(1 for _ in intact_packets(again, its_stream)))
    num_packets = max(1, sum(1 for _ in intact_packets(container, stream)))
    if not 0 < len(clock.times) <= num_packets:
        return num_packets
    listed = round((clock.times[-1] - clock.start) / clock.tick) + 1
    return listed + num_packets - len(clock.times)  # of a file cut short, whose index is too


def _display_time(packet: Any) -> int | None:
    time: int | None = packet.dts if packet.pts is None else packet.pts
    return time
