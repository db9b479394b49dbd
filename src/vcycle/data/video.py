"""Probe and decode video files: the only module that imports PyAV.

A path and a ``Grid`` go in; (T, H, W, 3) uint8 RGB comes out. Everything that a file can do wrong
leaves as one exception, ``UnreadableVideo``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from vcycle.data.grid import Grid
from vcycle.data.manifest import VideoInfo


class UnreadableVideo(Exception):  # noqa: N818  what it is, not what went wrong
    """A file that cannot be decoded: ``path`` and the ``reason`` in one line."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@contextmanager
def _opened(path: str) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream; every error inside becomes UnreadableVideo."""
    try:
        if not os.path.isfile(path):  # noqa: PTH113  a fifo or a device would block for ever
            reason = "not a file" if os.path.lexists(path) else "not found"
            raise UnreadableVideo(path, reason)
        with av.open(path, metadata_errors="ignore") as container:
            if not container.streams.video:
                raise UnreadableVideo(path, "no video stream")
            stream = container.streams.video[0]
            # One thread a worker: the workers are the parallelism.
            stream.codec_context.thread_count = 1
            stream.codec_context.thread_type = "NONE"
            yield container, stream
    except (av.FFmpegError, OSError, ValueError, ArithmeticError, LookupError) as error:
        raise UnreadableVideo(path, _one_line(error)) from error


def _one_line(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


def probe(path: str | os.PathLike[str]) -> VideoInfo:
    """The facts of a file, with its first frame decoded as proof.

    Raises UnreadableVideo when there is no video stream or nothing decodes.
    """
    name = os.fspath(path)
    with _opened(name) as (container, stream):
        rate = _frame_rate(stream)
        num_frames, duration = stream.frames, None
        if stream.duration:
            duration = stream.duration * stream.time_base
        elif container.duration:
            duration = Fraction(container.duration, av.time_base)
        first = next(container.decode(stream), None)
        if first is None:
            raise UnreadableVideo(name, "no frame decodes")
        if not num_frames:
            num_frames = round(duration * rate) if duration else _count_frames(container, stream)
        turned = first.rotation % 180 != 0
        return VideoInfo(
            num_frames=max(num_frames, 1),
            frame_rate=float(rate),
            duration_seconds=float(duration or num_frames / rate),
            width=first.height if turned else first.width,
            height=first.width if turned else first.height,
            codec=stream.codec_context.name,
            rotation=first.rotation % 360,
        )


def _frame_rate(stream: Any) -> Fraction:
    rate = stream.average_rate or stream.guessed_rate or stream.base_rate
    return Fraction(rate) if rate else Fraction(25)


def _count_frames(container: Any, stream: Any) -> int:
    """Without an index or a duration the packets have to be counted; none is decoded."""
    container.seek(0)
    return sum(1 for packet in container.demux(stream) if packet.size)


def read_clip(path: str | os.PathLike[str], grid: Grid) -> NDArray[np.uint8]:
    """Decode the frames of a grid and resample each: (T, H, W, 3) uint8 RGB.

    Past the last frame that decodes, that frame repeats. Raises UnreadableVideo if none does.
    """
    name = os.fspath(path)
    clip = np.empty((len(grid.frames), grid.height, grid.width, 3), np.uint8)
    done = _fill(clip, name, grid, seek=grid.frames[0] > 0)
    if done is None:
        done = _fill(clip, name, grid, seek=False)
    if not done:
        raise UnreadableVideo(name, f"no frame decodes from frame {grid.frames[0]} on")
    clip[done:] = clip[done - 1]
    return clip


def _fill(clip: NDArray[np.uint8], name: str, grid: Grid, *, seek: bool) -> int | None:
    """Decode into ``clip`` and return how many frames came; None if the seek missed the first.

    That happens in containers without an index, such as MPEG-TS.
    """
    done = 0
    with _opened(name) as (container, stream):
        ticks = 1 / (_frame_rate(stream) * stream.time_base)  # of the stream's clock, per frame
        start = stream.start_time or 0
        # A frame is the wanted one from half an interval before its time: clocks are rounded.
        wanted = [math.floor(start + frame * ticks - ticks / 2) for frame in grid.frames]
        if seek:
            container.seek(max(wanted[0], start), stream=stream)
        resample = _Resampler(grid)
        picture = None
        for at, picture in _timed(container, stream, start, ticks):
            if seek and done == 0 and at > wanted[0] + ticks:
                return None
            seek = False
            if at <= wanted[done]:
                continue
            pixels = resample(picture)
            while done < len(wanted) and at > wanted[done]:
                clip[done] = pixels
                done += 1
            if done == len(wanted):
                return done
        if picture is None and seek:
            return None
        if picture is not None and done == 0:  # the wanted frames are past the end
            clip[0] = resample(picture)
            done = 1
    return done


def _timed(container: Any, stream: Any, start: int, ticks: Fraction) -> Iterator[tuple[Any, Any]]:
    """Decoded pictures with their times; where the file gives none, at the even rate."""
    for count, picture in enumerate(container.decode(stream)):
        yield picture.pts if picture.pts is not None else start + count * ticks, picture


class _Resampler:
    """Turns decoded pictures into the grid's pixels: crop, bilinear scale and RGB in one pass."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.reformatter = av.video.reformatter.VideoReformatter()

    def __call__(self, picture: Any) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 RGB."""
        grid, box = self.grid, self.grid.box
        turns = picture.rotation % 360 // 90
        size = picture.height, picture.width
        if turns % 2:
            size = size[::-1]
        height = round(size[0] * grid.height / box.height)
        width = round(size[1] * grid.width / box.width)
        scaled = self.reformatter.reformat(
            picture,
            width=height if turns % 2 else width,
            height=width if turns % 2 else height,
            format="rgb24",
            threads=1,
        )
        rgb: NDArray[np.uint8] = np.rot90(scaled.to_ndarray(), turns)
        top = min(round(box.top * grid.height / box.height), height - grid.height)
        left = min(round(box.left * grid.width / box.width), width - grid.width)
        rgb = rgb[top : top + grid.height, left : left + grid.width]
        return rgb[:, ::-1] if grid.flip else rgb
