"""What a probe finds in a file whose contents are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.encode import encode, numbered_frames, rotate_display
from vcycle.data.decode.probe import probe
from vcycle.data.metadata import Location

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


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared videos")
def test_real_videos():
    info = probe(Location(str(SHARED / "nasa_13013.mp4")))
    assert (info.num_frames, info.width, info.height) == (390, 480, 270)
    info = probe(Location(str(SHARED / "flipping_a_pancake.mkv")))
    assert (info.width, info.height, info.frame_rate) == (426, 240, 30)
    assert info.num_frames == pytest.approx(300, abs=15)
