"""Frame numbers and times, by hand."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import av
import pytest

from tests.encode import KINDS, encode, frame_number, numbered_frames
from vcycle.data.decode.clock import StreamClock, stream_clock, stream_frame_rate
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import Box, Grid
from vcycle.data.metadata import Location


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
        average_rate=average,
        guessed_rate=Fraction(guess),
        base_rate=None,
        time_base=unit,
        index_entries=[],
    )
    assert stream_frame_rate(stream) == rate


@pytest.mark.parametrize(
    ("suffix", "codec", "options"),
    [
        ("avi", "mjpeg", {}),
        ("mp4", "libx264", {"video_track_timescale": "500"}),
        ("mov", "libx264", {"video_track_timescale": "500", "movflags": "frag_keyframe"}),
    ],
)
def test_a_camera_of_many_frames_a_second_may_have_one_at_each_unit_of_time(
    tmp_path, suffix, codec, options
):
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = tmp_path / f"v.{suffix}"
    frames = numbered_frames(40)
    encode(path, frames, rate=500, codec=codec, pix_fmt=pix_fmt, container_options=options)
    place = Location(str(path))
    info = probe(place)
    assert (info.num_frames, info.frame_rate) == (40, 500)
    clip = read_clip(place, Grid((0, 15, 30, 39), Box(0, 0, 64, 96), 64, 96, False))
    assert [frame_number(frame, 40) for frame in clip] == [0, 15, 30, 39]


def test_frames_at_some_units_of_time_are_not_one_at_each(tmp_path):
    """As of a screen recorder's AVI, whose rate is 1000: it has a place for each millisecond."""
    path = tmp_path / "v.avi"
    times = [k / 30 for k in range(40)]
    encode(path, numbered_frames(40), rate=1000, codec="mpeg4", times=times)
    assert probe(Location(str(path))).frame_rate == 30
