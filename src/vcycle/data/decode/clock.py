"""The clock of a video stream: from frame numbers to times in the stream's units, and back.

An open stream goes in; a ``StreamClock`` comes out. It exists because containers disagree about
times: some store none, some store wrong ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

_MOST_GUESSED = 240


@dataclass(frozen=True)
class StreamClock:
    """A stream's clock: its first frame begins at ``start``, one every ``tick`` units.

    If the container's display times are missing or wrong, frames are ``counted`` from the first
    one on, and none can be skipped. Then ``times`` are those of the first frames, as far as an
    index tells.
    """

    start: int
    tick: Fraction
    counted: bool = False
    times: tuple[int, ...] = ()

    def until(self, number: int) -> int:
        """The latest time at which the frame of this number may begin."""
        over, under = self.tick.as_integer_ratio()  # integers: this runs for every packet
        return self.start + (2 * number + 1) * over // (2 * under)


def stream_clock(container: Any, stream: Any) -> StreamClock:
    """The clock of an open stream."""
    # AVI stores no display times, and these may differ from the order in the file. Those of a
    # program stream are wrong after a seek and at open groups of pictures. A raw stream has none.
    context = stream.codec_context
    may_reorder = context.reorder_depth > 0 or context.name in ("h264", "hevc")
    counted = (
        container.format.name == "mpeg"
        or (container.format.name == "avi" and may_reorder)
        or stream.start_time is None
    )
    tick = 1 / (stream_frame_rate(stream) * stream.time_base)
    times: tuple[int, ...] = ()
    if counted and container.format.name == "avi":  # its index skips the frames that were dropped
        times = tuple(entry.timestamp for entry in stream.index_entries if entry.size)
    return StreamClock(times[0] if times else stream.start_time or 0, tick, counted, times)


def stream_frame_rate(stream: Any) -> Fraction:
    """Mean frames per second; 25 if the file does not tell.

    A guess of FFmpeg's may be no rate, but the unit of the times, such as milliseconds. So may a
    duration that the file gives its frames, unless its index has a frame at each unit.
    """
    rate = Fraction(stream.average_rate or 0)
    may_be_unit = rate > _MOST_GUESSED and rate * stream.time_base == 1
    if rate and (not may_be_unit or _has_a_frame_a_unit(stream)):
        return rate
    guess = Fraction(stream.guessed_rate or stream.base_rate or 0)
    return guess if 0 < guess <= _MOST_GUESSED else Fraction(25)


def _has_a_frame_a_unit(stream: Any) -> bool:
    """Whether most frames of the container's index begin one unit of time after the one before."""
    gaps = [b.timestamp - a.timestamp for a, b in pairwise(stream.index_entries)]
    return 2 * gaps.count(1) > len(gaps)
