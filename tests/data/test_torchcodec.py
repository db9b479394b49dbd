"""torchcodec and PyAV give the same frames; skipped where torchcodec cannot be loaded."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from data.encode import encode, frame_number, numbered_frames
from vcycle.data.dataset import ClipDataset, ClipRequest
from vcycle.data.grid import Box, Grid, GridRange, View
from vcycle.data.manifest import Location, Manifest, UnreadableVideo, Video
from vcycle.data.torchcodec_video import read_clip as read_by_torchcodec
from vcycle.data.video import probe, read_clip
from vcycle.schedule.shape import Shape


@pytest.fixture(scope="module", autouse=True)
def _needs_torchcodec():
    try:
        import torchcodec.decoders  # noqa: F401
    except Exception as error:
        pytest.skip(f"torchcodec cannot be loaded: {type(error).__name__}")


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("frames", [(0, 1, 2), (5, 13, 21, 29), (38, 39, 44)])
@pytest.mark.parametrize("flip", [False, True])
def test_the_same_frames_and_pixels(tmp_path, suffix, frames, flip):
    path = encode(tmp_path / f"v.{suffix}", numbered_frames(40), options={"bf": "2"})
    grid = Grid(frames, Box(8, 16, 48, 60), 32, 40, flip)
    ours = read_clip(Location(str(path)), grid)
    theirs = read_by_torchcodec(Location(str(path)), grid)
    if not flip:
        assert [frame_number(picture, 40) for picture in theirs] == [min(f, 39) for f in frames]
    assert np.abs(ours.astype(int) - theirs).mean() < 2.5


def test_a_dataset_can_use_it(tmp_path):
    path = encode(tmp_path / "v.mp4", numbered_frames(40))
    info = probe(Location(str(path)))
    video = Video(path="v.mp4", labels=(0,), split="train", **dataclasses.asdict(info))
    manifest = Manifest(tmp_path, ("any",), (video,))
    grid_range = GridRange(Shape(4, 32, 32), 2, (37, 49))
    request = ClipRequest(0, Shape(4, 32, 32), 0, View())
    clips = [
        ClipDataset(manifest, grid_range, decoder=decoder)[request].pixels.astype(int)
        for decoder in ("pyav", "torchcodec")
    ]
    assert np.abs(clips[0] - clips[1]).mean() < 2.5


def test_what_is_no_video_is_refused(tmp_path):
    (tmp_path / "text.mp4").write_text("no video")
    grid = Grid((0,), Box(0, 0, 8, 8), 8, 8, False)
    for name in ("text.mp4", "nowhere.mp4"):
        with pytest.raises(UnreadableVideo) as caught:
            read_by_torchcodec(Location(str(tmp_path / name)), grid)
        assert "\n" not in str(caught.value)
