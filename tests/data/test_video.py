"""Decoding against the frames that were encoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.encode import encode, frame_number, numbered_frames
from vcycle.data.grid import Box, Grid
from vcycle.data.video import UnreadableVideo, probe, read_clip

SHARED = Path("/work/shared/videos")


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """40 frames, 96 x 64, key frames every 12, B-frames in between."""
    return encode(tmp_path_factory.mktemp("video") / "v.mp4", numbered_frames(40))


def grid(*frames, box=None, size=(64, 96), flip=False):
    return Grid(frames, box or Box(0, 0, 64, 96), *size, flip)


def test_probe(video):
    info = probe(video)
    assert (info.num_frames, info.frame_rate, info.duration_seconds) == (40, 10, 4)
    assert (info.width, info.height, info.codec, info.rotation) == (96, 64, "h264", 0)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi", "ts"])
@pytest.mark.parametrize("frames", [range(40), range(0, 40, 7), (39,), (13, 13, 14), (5, 38)])
def test_the_frames_asked_for_come_out(tmp_path, suffix, frames):
    codec, options = "libx264", {"bf": "2"}
    if suffix == "avi":  # as UCF101 and HMDB51 are stored
        codec, options = "mpeg4", {"b": "20000000"}
    path = encode(tmp_path / f"v.{suffix}", numbered_frames(40), codec=codec, options=options)
    clip = read_clip(path, grid(*frames))
    assert [frame_number(picture, 40) for picture in clip] == list(frames)


def test_frames_past_the_end_repeat_the_last(video):
    clip = read_clip(video, grid(38, 39, 45, 60))
    assert [frame_number(picture, 40) for picture in clip] == [38, 39, 39, 39]
    clip = read_clip(video, grid(50, 60))
    assert [frame_number(picture, 40) for picture in clip] == [39, 39]


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("box", [Box(0, 0, 64, 96), Box(10, 21, 40, 40), Box(31, 47, 33, 49)])
def test_the_box_is_cut_and_scaled(video, box, flip):
    clip = read_clip(video, grid(3, box=box, size=(20, 24), flip=flip))
    assert clip.shape == (1, 20, 24, 3)
    assert clip.dtype == np.uint8
    expected = _resized(numbered_frames(40)[3], box, 20, 24)
    if flip:
        expected = expected[:, ::-1]
    inner = np.abs(clip[0].astype(float) - expected)
    assert np.median(inner) < 4
    assert inner.mean() < 8


def _resized(rgb, box, height, width):
    """Mean of a fine nearest-neighbour sampling of each pixel's area."""
    y = box.top + (np.arange(height * 8) + 0.5) * box.height / (height * 8)
    x = box.left + (np.arange(width * 8) + 0.5) * box.width / (width * 8)
    fine = rgb[y.astype(int)][:, x.astype(int)].astype(float)
    return fine.reshape(height, 8, width, 8, 3).mean(axis=(1, 3))


def test_what_is_no_video_is_named(tmp_path):
    text = tmp_path / "v.mp4"
    text.write_text("no video\n" * 100)
    for path, reason in (
        (tmp_path / "nowhere.mp4", "not found"),
        (tmp_path, "not a file"),
        (text, "Invalid data"),
    ):
        for read in (probe, lambda path: read_clip(path, grid(0))):
            with pytest.raises(UnreadableVideo, match=reason) as caught:
                read(path)
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared videos")
def test_real_videos():
    info = probe(SHARED / "nasa_13013.mp4")
    assert info.num_frames > 300
    info = probe(SHARED / "flipping_a_pancake.mkv")
    assert (info.width, info.height, info.frame_rate) == (426, 240, 30)
    assert info.num_frames == pytest.approx(300, abs=15)
    clip = read_clip(SHARED / "flipping_a_pancake.mkv", grid(0, 100, 200, box=Box(0, 0, 240, 426)))
    assert np.abs(np.diff(clip.astype(int), axis=0)).mean() > 5
