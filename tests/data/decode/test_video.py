"""Decoding against the frames that were encoded."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from pathlib import Path

import av
import numpy as np
import pytest

from tests.encode import encode, frame_number, numbered_frames, rotate_display
from vcycle.data.decode import video as video_module
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import WAYS, iterate_frames, read_clip
from vcycle.data.grid import Box, Grid
from vcycle.data.metadata import Location, UnreadableVideo

SHARED = Path(__file__).parents[4] / "shared" / "videos"


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """40 frames, 96 x 64, key frames every 12, B-frames in between."""
    return encode(tmp_path_factory.mktemp("video") / "v.mp4", numbered_frames(40))


def grid(*frames, box=None, size=(64, 96), flip=False):
    return Grid(frames, box or Box(0, 0, 64, 96), *size, flip)


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "avi", "ts"])
@pytest.mark.parametrize("frames", [range(40), range(0, 40, 7), (39,), (13, 13, 14), (5, 38)])
def test_the_frames_asked_for_come_out(tmp_path, suffix, frames):
    codec, options = "libx264", {"bf": "2"}
    if suffix == "avi":  # as UCF101 and HMDB51 are stored
        codec, options = "mpeg4", {"b": "20000000"}
    path = encode(tmp_path / f"v.{suffix}", numbered_frames(40), codec=codec, options=options)
    clip = read_clip(Location(str(path)), grid(*frames))
    assert [frame_number(frame, 40) for frame in clip] == list(frames)


def test_frames_past_the_end_repeat_the_last(video):
    clip = read_clip(Location(str(video)), grid(38, 39, 45, 60))
    assert [frame_number(frame, 40) for frame in clip] == [38, 39, 39, 39]
    clip = read_clip(Location(str(video)), grid(50, 60))
    assert [frame_number(frame, 40) for frame in clip] == [39, 39]


def test_every_frame_of_a_mirrored_clip_is_mirrored(video):
    clip, mirrored = (
        read_clip(Location(str(video)), grid(*range(9), flip=flip)) for flip in (False, True)
    )
    assert np.array_equal(mirrored, clip[:, :, ::-1])


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(
    "box",
    [
        Box(0, 0, 64, 96),
        Box(10, 21, 40, 40),
        Box(31, 47, 33, 49),
        Box(0, 0, 16, 96),
        Box(0, 0, 64, 24),
    ],
)
def test_the_box_is_cut_and_scaled(video, box, flip):
    clip = read_clip(Location(str(video)), grid(3, box=box, size=(20, 24), flip=flip))
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


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared videos")
def test_a_real_video_moves():
    pancake = Location(str(SHARED / "flipping_a_pancake.mkv"))
    clip = read_clip(pancake, grid(0, 100, 200, box=Box(0, 0, 240, 426)))
    assert np.abs(np.diff(clip.astype(int), axis=0)).mean() > 5


@pytest.mark.parametrize(
    ("mirrored", "turns"),
    [(False, 1), (False, 2), (False, 3), (True, 0), (True, 1), (True, 2), (True, 3)],
)
def test_a_mirrored_or_rotated_video_is_read_as_displayed(tmp_path, mirrored, turns):
    """A box of the displayed frame is the same as of frames that were turned beforehand."""
    frames = numbered_frames(8)
    displayed = np.rot90(frames[:, :, ::-1] if mirrored else frames, turns, axes=(1, 2))
    plain = encode(tmp_path / "plain.mp4", displayed)
    turned = rotate_display(encode(tmp_path / "turned.mp4", frames), turns, mirrored=mirrored)
    info = probe(Location(str(turned)))
    assert (info.height, info.width) == displayed.shape[1:3]
    assert mirrored or info.rotation == 90 * turns
    g = grid(1, 6, box=Box(10, 4, 40, 50), size=(30, 20))
    a = read_clip(Location(str(plain)), g).astype(int)
    b = read_clip(Location(str(turned)), g).astype(int)
    assert np.abs(a - b).mean() < 4
    for one, other in zip(
        iterate_frames(Location(str(turned)), info), displayed.astype(int), strict=True
    ):
        assert np.abs(one.to_ndarray(format="rgb24") - other).mean() < 8


def test_all_key_frames_decode_the_same_without_looking_ahead(tmp_path):
    path = encode(tmp_path / "v.mp4", numbered_frames(40), gop=1)
    place = Location(str(path))
    assert probe(place).key_interval == 1
    g = grid(0, 7, 8, 30, 39, 50)
    fast = read_clip(place, g, all_key_frames=True)
    assert np.array_equal(fast, read_clip(place, g))
    assert [frame_number(frame, 40) for frame in fast] == [0, 7, 8, 30, 39, 39]


def test_a_variable_frame_rate_is_resampled_to_its_mean(tmp_path):
    """20 frames 0.1 s apart, a second of nothing, 20 frames 0.05 s apart: mean rate 13.3."""
    times = [0.1 * k for k in range(20)] + [3 + 0.05 * k for k in range(20)]
    path = encode(tmp_path / "v.mkv", numbered_frames(40), times=times)
    info = probe(Location(str(path)))
    clip = read_clip(Location(str(path)), grid(*range(info.num_frames)))
    shown = [frame_number(frame, 40) for frame in clip]
    assert shown == sorted(shown)
    for k, frame in enumerate(shown[:-2]):
        seconds = k / info.frame_rate
        assert times[frame] == pytest.approx(seconds, abs=0.11) or 1.9 < seconds < 3


@pytest.mark.parametrize(("b_frames", "most_off"), [(0, 0), (2, 2)])
def test_an_avi_whose_frames_are_counted_keeps_the_time_of_dropped_ones(
    tmp_path, b_frames, most_off
):
    """With B-frames its index has the times of decoding, which differ by a few frames."""
    gaps = [1, 3, 1, 2] * 10
    tenths = [sum(gaps[:k]) for k in range(40)]
    options, times = {"bf": str(b_frames)}, [k / 10 for k in tenths]
    path = encode(tmp_path / "v.avi", numbered_frames(40), times=times, options=options)
    assert probe(Location(str(path))).num_frames == pytest.approx(69, abs=most_off)
    clip = read_clip(Location(str(path)), grid(*range(69)))
    for k, frame in enumerate(clip):
        number = bisect_right(tenths, k) - 1
        assert frame_number(frame, 40) == pytest.approx(number, abs=most_off)


def test_an_avi_without_the_end_of_its_index_keeps_its_last_frames(tmp_path):
    """Those that are not listed come one after the other."""
    times = [k // 2 / 10 + k * 0.1 for k in range(200)]
    path = encode(tmp_path / "v.avi", numbered_frames(200), times=times, options={"bf": "0"})
    whole = probe(Location(str(path))).num_frames
    content = path.read_bytes()
    path.write_bytes(content[: 9 * len(content) // 10])
    info = probe(Location(str(path)))
    assert 200 < info.num_frames < whole
    (last,) = read_clip(Location(str(path)), grid(info.num_frames - 1))
    assert frame_number(last, 200) == pytest.approx(199, abs=1)


def test_a_slow_decode_is_ended(video, tmp_path):
    frame = av.VideoFrame.from_ndarray(numbered_frames(1)[0], format="rgb24")
    frame.save(str(tmp_path / "1.png"))
    for path in (video, tmp_path):
        with pytest.raises(UnreadableVideo, match="longer than"):
            read_clip(Location(str(path)), grid(30), limit_seconds=0)


def test_a_seek_between_key_frames_of_a_transport_stream_shows_no_broken_picture(tmp_path):
    """MPEG-4 Part 2, whose decoder makes pictures without the one that they refer to."""
    options = {"g": "15", "b": "20000000"}
    path = encode(tmp_path / "v.ts", numbered_frames(40), codec="mpeg4", options=options)
    for first in range(34):
        frames = range(first, first + 6, 2)
        clip = read_clip(Location(str(path)), grid(*frames))
        assert [frame_number(frame, 40) for frame in clip] == list(frames)


def test_a_seek_that_lands_late_in_a_transport_stream_is_tried_again_from_before(
    tmp_path, monkeypatch
):
    path = encode(tmp_path / "v.ts", numbered_frames(40), options={"bf": "2", "g": "12"})
    lands_late = 0
    for first in range(20, 32):
        frames = range(first, first + 6, 2)
        monkeypatch.setattr(video_module, "WAYS", WAYS[:1])
        with contextlib.suppress(UnreadableVideo):
            read_clip(Location(str(path)), grid(*frames))
            continue
        lands_late += 1
        monkeypatch.setattr(video_module, "WAYS", WAYS[:2])  # not all frames from the start
        clip = read_clip(Location(str(path)), grid(*frames))
        assert [frame_number(frame, 40) for frame in clip] == list(frames)
    assert lands_late
