"""Kept frames: the clips that files give, decoded once, within their bound."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from tests.encode import KINDS, encode, moving_noise, numbered_frames, rotate_display
from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.kept import KeptFrames, decoded_bytes
from vcycle.data.decode.probe import probe
from vcycle.data.grid import GridRange
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location, Video
from vcycle.data.request import ClipRequest
from vcycle.schedule.shape import Shape

RANGE = GridRange(Shape(8, 32, 32), 3, (34, 48))
FRAME_BYTES = 96 * 64 * 3 // 2
SHAPES = (Shape(2, 16, 16), Shape(4, 22, 30), Shape(8, 32, 32))


def dataset(*paths: Path, kept: KeptFrames | None = None) -> ClipDataset:
    videos = tuple(
        Video(**vars(probe(Location(str(path)))), path=path.name, labels=(0,), split="train")
        for path in paths
    )
    return ClipDataset(Manifest(paths[0].parent, ("a",), videos), RANGE, kept=kept)


def clips(of: ClipDataset, *, num_clips: int = 12) -> list[np.ndarray]:
    requests = (ClipRequest(k % len(of), SHAPES[k % len(SHAPES)], seed=k) for k in range(num_clips))
    return [of[request].pixels.numpy() for request in requests]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """40 frames of 96 x 64."""
    return encode(tmp_path / "v.mp4", moving_noise(40))


@pytest.mark.parametrize("kind", KINDS)
def test_clips_are_those_of_the_file(tmp_path: Path, kind: str) -> None:
    suffix, codec, options = KINDS[kind]
    path = encode(tmp_path / f"v.{suffix}", moving_noise(40), rate=25, codec=codec, options=options)
    assert_same(clips(dataset(path, kept=KeptFrames(2**30))), clips(dataset(path)))


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_rotated_video_is_cut_as_displayed(video: Path, turns: int) -> None:
    rotate_display(video, turns)
    assert_same(clips(dataset(video, kept=KeptFrames(2**30))), clips(dataset(video)))


def test_a_variable_frame_rate_and_a_part_of_a_video(tmp_path: Path) -> None:
    times = [0.1 * k for k in range(20)] + [3 + 0.05 * k for k in range(20)]
    path = encode(tmp_path / "v.mkv", moving_noise(40), times=times)
    of_file, kept = dataset(path), dataset(path, kept=KeptFrames(2**30))
    assert_same(clips(kept), clips(of_file))
    (whole,) = of_file.manifest.videos
    part = replace(of_file.manifest, videos=(replace(whole, start_seconds=1.0, end_seconds=3.5),))
    assert_same(clips(replace(kept, manifest=part)), clips(replace(of_file, manifest=part)))


def test_a_folder_of_images_that_has_lost_some(tmp_path: Path) -> None:
    for k, rgb in enumerate(numbered_frames(20)):
        av.VideoFrame.from_ndarray(rgb, format="rgb24").save(str(tmp_path / f"{k:02}.png"))
    info = probe(Location(str(tmp_path)))
    video = Video(**vars(info), path=tmp_path.name, labels=(0,), split="train")
    for k in range(15, 20):
        (tmp_path / f"{k:02}.png").unlink()
    of_files = ClipDataset(Manifest(tmp_path.parent, ("a",), (video,)), RANGE)
    assert_same(clips(replace(of_files, kept=KeptFrames(2**30))), clips(of_files))


def test_a_video_is_decoded_once(video: Path) -> None:
    expected = clips(dataset(video))
    kept = dataset(video, kept=KeptFrames(2**30))
    kept[ClipRequest(0, SHAPES[0], seed=5)]
    video.unlink()
    assert_same(clips(kept), expected)


def test_what_does_not_fit_is_read_from_its_file(tmp_path: Path) -> None:
    short = encode(tmp_path / "short.mp4", moving_noise(10))
    long = encode(tmp_path / "long.mp4", moving_noise(40))
    expected = clips(dataset(short, long))
    held = KeptFrames(20 * FRAME_BYTES)
    kept = dataset(short, long, kept=held)
    assert_same(clips(kept), expected)
    assert 10 * FRAME_BYTES <= held._num_bytes <= held.max_bytes
    long.unlink()
    assert kept[ClipRequest(0, SHAPES[0], seed=0)].index == 0
    assert kept[ClipRequest(1, SHAPES[0], seed=1)].index == 0  # its file is gone
    short.unlink()
    assert kept[ClipRequest(0, SHAPES[0], seed=2)].index == 0


def test_a_broken_video_is_as_bad_as_without(video: Path) -> None:
    content = video.read_bytes()
    of_file, kept = dataset(video), dataset(video, kept=KeptFrames(2**30))
    video.write_bytes(b"no video")
    for each in (of_file, kept):
        with pytest.raises(TooManyBadVideos):
            each[ClipRequest(0, SHAPES[0], seed=0)]
    video.write_bytes(content)
    assert_same(clips(replace(kept, kept=KeptFrames(2**30))), clips(of_file))


def test_what_is_sent_to_another_process_begins_empty(video: Path) -> None:
    held = KeptFrames(2**30)
    kept = dataset(video, kept=held)
    expected = clips(kept)
    sent = pickle.loads(pickle.dumps(kept))
    assert len(pickle.dumps(kept)) < 2_000
    assert (held._num_bytes > 0, sent.kept._num_bytes, sent.kept.max_bytes) == (True, 0, 2**30)
    assert_same(clips(sent), expected)


def test_the_memory_of_frames_is_known_before_they_are_decoded(video: Path) -> None:
    held = KeptFrames(2**30)
    clips(dataset(video, kept=held))
    videos = dataset(video).manifest.videos
    assert 40 * FRAME_BYTES <= held._num_bytes <= decoded_bytes(videos) == 2 * 40 * FRAME_BYTES
    halves = [replace(videos[0], end_seconds=2.0), replace(videos[0], start_seconds=2.0)]
    assert decoded_bytes(halves) == decoded_bytes(videos)  # they are of one file
