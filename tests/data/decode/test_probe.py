"""What a probe finds in a file whose contents are known."""

from __future__ import annotations

import struct
from pathlib import Path

import av
import pytest

from tests.encode import encode, frame_number, numbered_frames, rotate_display
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import Box, Grid
from vcycle.data.metadata import Location, UnreadableVideo

SHARED = Path(__file__).parents[4] / "shared" / "videos"


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """40 frames, 96 x 64, key frames every 12, B-frames in between."""
    return encode(tmp_path_factory.mktemp("video") / "v.mp4", numbered_frames(40))


def test_probe(video):
    info = probe(Location(str(video)))
    assert (info.num_frames, info.frame_rate, info.duration_seconds) == (40, 10, 4)
    assert (info.width, info.height, info.codec, info.rotation) == (96, 64, "h264", 0)


@pytest.mark.parametrize("gop", [1, 7])
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_the_key_interval_is_the_longest_if_the_index_lists_every_frame(tmp_path, suffix, gop):
    path = encode(tmp_path / f"v.{suffix}", numbered_frames(40), gop=gop)
    assert probe(Location(str(path))).key_interval == (gop if suffix == "mp4" else 0)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_sizes_are_those_of_the_display(tmp_path, turns):
    path = encode(tmp_path / "v.mp4", numbered_frames(4))
    if turns:
        rotate_display(path, turns)
    info = probe(Location(str(path)))
    assert info.rotation == 90 * turns
    assert (info.width, info.height) == ((96, 64), (64, 96))[turns % 2]


def test_a_display_matrix_of_zeros_turns_nothing(tmp_path):
    path = encode(tmp_path / "v.mp4", numbered_frames(4))
    identity = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    path.write_bytes(path.read_bytes().replace(identity, bytes(len(identity))))
    info = probe(Location(str(path)))
    assert (info.width, info.height, info.rotation) == (96, 64, 0)
    box = Box(0, 0, 64, 96)
    (frame,) = read_clip(Location(str(path)), Grid((2,), box, 64, 96, False))
    assert frame_number(frame, 4) == 2


@pytest.mark.parametrize(("suffix", "codec"), [("h264", "libx264"), ("mjpeg", "mjpeg")])
def test_all_frames_of_a_raw_stream_are_counted_and_read(tmp_path, suffix, codec):
    """It has no times, and cannot be sought in."""
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    frames = numbered_frames(60)
    path = encode(tmp_path / f"v.{suffix}", frames, codec=codec, pix_fmt=pix_fmt, rate=25)
    info = probe(Location(str(path)))
    assert (info.num_frames, info.duration_seconds) == (60, 2.4)
    grid = Grid((5, 31, 59), Box(0, 0, 64, 96), 64, 96, False)
    clip = read_clip(Location(str(path)), grid)
    assert [frame_number(frame, 60) for frame in clip] == [5, 31, 59]


def test_recordings_that_were_joined_are_no_video(tmp_path):
    """Of transport streams, times begin again there: a time means two frames."""
    first = encode(tmp_path / "1.ts", numbered_frames(40), rate=25)
    second = encode(tmp_path / "2.ts", numbered_frames(30), rate=25)
    assert probe(Location(str(first))).num_frames == 40
    joined = tmp_path / "joined.ts"
    joined.write_bytes(first.read_bytes() + second.read_bytes())
    with pytest.raises(UnreadableVideo, match="its times begin again in the middle"):
        probe(Location(str(joined)))


@pytest.mark.parametrize("duration", [1, 2**31 - 1])
def test_a_duration_is_that_of_the_frames(tmp_path, duration):
    """Whatever the header of the track says."""
    path = encode(tmp_path / "v.mp4", numbered_frames(40))
    content = bytearray(path.read_bytes())
    struct.pack_into(">I", content, content.index(b"mdhd") + 20, duration)
    path.write_bytes(content)
    info = probe(Location(str(path)))
    assert (info.num_frames, info.duration_seconds) == (40, 4)


@pytest.mark.parametrize(("first", "seconds"), [(2.0, 15.0), (0.0, 2.2)])
def test_a_trimmed_video_of_a_varying_rate_is_as_long_as_what_is_left(tmp_path, first, seconds):
    """70 frames in 2.3 s, 30 in the 15 s after them: by its edit list it is trimmed to one part."""
    times = [k / 30 for k in range(70)] + [(70 + 15 * k) / 30 for k in range(30)]
    frames, options = numbered_frames(100), {"bf": "0", "x264-params": "scenecut=0"}
    path = encode(tmp_path / "v.mp4", frames, times=times, gop=300, options=options)
    with av.open(str(path)) as container:
        start = round(first / container.streams.video[0].time_base)
    content = bytearray(path.read_bytes())
    place = content.index(b"elst") + 12
    struct.pack_into(">ii", content, place, round(1000 * seconds), start)
    path.write_bytes(content)
    info = probe(Location(str(path)))
    assert info.duration_seconds == pytest.approx(seconds, abs=0.5)
    numbers = (0, info.num_frames - 1)
    clip = read_clip(Location(str(path)), Grid(numbers, Box(0, 0, 64, 96), 64, 96, False))
    last = 99 if first else 65
    assert [frame_number(frame, 100) for frame in clip] == pytest.approx([30 * first, last], abs=1)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared videos")
def test_real_videos():
    info = probe(Location(str(SHARED / "nasa_13013.mp4")))
    assert (info.num_frames, info.width, info.height) == (390, 480, 270)
    info = probe(Location(str(SHARED / "flipping_a_pancake.mkv")))
    assert (info.width, info.height, info.frame_rate) == (426, 240, 30)
    assert info.num_frames == pytest.approx(300, abs=15)
