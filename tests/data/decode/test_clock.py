"""Frame numbers and times, by hand."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import av
import pytest

from tests.encode import KINDS, encode, numbered_frames
from vcycle.data.decode.clock import StreamClock, stream_clock, stream_frame_rate


def test_a_frame_may_begin_half_a_frame_late():
    clock = StreamClock(start=100, tick=Fraction(10))
    assert [clock.until(number) for number in range(3)] == [105, 115, 125]
    assert StreamClock(start=0, tick=Fraction(1001, 30)).until(1) == 50  # 1.5 x 33.37, rounded down


@pytest.mark.parametrize(
    ("kind", "counted"),
    [
        *(("b-frames", False), ("open-gop", False), ("mpeg-ts", False), ("mpeg4", False)),
        *(("avi-b-frames", True), ("avi-intra", True), ("program-stream", True)),
    ],
)
def test_frames_are_counted_if_the_container_has_no_times_to_trust(tmp_path, kind, counted):
    suffix, codec, options = KINDS[kind]
    path = tmp_path / f"v.{suffix}"
    encode(path, numbered_frames(20), codec=codec, rate=25, options=options)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        clock = stream_clock(container, stream)
        assert clock.counted is counted
        assert clock.tick * stream.time_base == 1 / stream_frame_rate(stream) == Fraction(1, 25)


@pytest.mark.parametrize(
    ("average", "guess", "rate"),
    [
        *((Fraction(24), 1000, 24), (None, 30, 30), (None, 1000, 25), (None, 90_000, 25)),
        *((None, 0, 25), (Fraction(1000), 1000, 25), (Fraction(500), 500, 500)),
    ],
)
def test_a_unit_of_time_is_no_frame_rate(average, guess, rate):
    """As FFmpeg guesses of frames that come when they like: milliseconds, or ticks of 90 kHz.

    Files that were written at such a guess say so themselves.
    """
    unit = Fraction(1, 1000)
    stream = SimpleNamespace(
        average_rate=average, guessed_rate=Fraction(guess), base_rate=None, time_base=unit
    )
    assert stream_frame_rate(stream) == rate
