"""Kept frames: the clips that files give, decoded once, within their bound."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import fsspec
import numpy as np
import pytest

from tests.encode import KINDS, encode, moving_noise, numbered_frames, rotate_display
from vcycle.data import dataset as dataset_module
from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.cache import VideoCache
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.kept import KeptFrames, decoded_bytes
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import stored_frames
from vcycle.data.grid import GridRange
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location, UnreadableVideo, Video
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


def assert_kept(of_files: ClipDataset) -> None:
    """Its clips are the same of frames that were kept, when the videos are gone."""
    expected = clips(of_files)
    kept = replace(of_files, kept=KeptFrames(2**30))
    for index in range(len(kept)):
        kept[ClipRequest(index, SHAPES[0], seed=99)]
    for video in kept.manifest.videos:
        path = kept.manifest.root / video.path
        path.rename(path.with_suffix(".gone"))
    assert_same(clips(kept), expected)


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
    assert_kept(dataset(path))


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_rotated_video_is_cut_as_displayed(video: Path, turns: int) -> None:
    rotate_display(video, turns)
    assert_kept(dataset(video))


def test_a_variable_frame_rate_and_a_part_of_a_video(tmp_path: Path) -> None:
    times = [0.1 * k for k in range(20)] + [3 + 0.05 * k for k in range(20)]
    path = encode(tmp_path / "v.mkv", moving_noise(40), times=times)
    of_file = dataset(path)
    (whole,) = of_file.manifest.videos
    halves = replace(whole, end_seconds=2.0), replace(whole, start_seconds=1.0, end_seconds=3.5)
    for line in (*halves, whole):
        assert_same(
            clips(one_line(of_file, line, KeptFrames(2**30))), clips(one_line(of_file, line))
        )
    assert_kept(of_file)


def one_line(of: ClipDataset, video: Video, kept: KeptFrames | None = None) -> ClipDataset:
    return replace(of, manifest=replace(of.manifest, videos=(video,)), kept=kept)


def test_a_folder_of_images_that_has_lost_some(tmp_path: Path) -> None:
    for k, rgb in enumerate(numbered_frames(20)):
        av.VideoFrame.from_ndarray(rgb, format="rgb24").save(str(tmp_path / f"{k:02}.png"))
    info = probe(Location(str(tmp_path)))
    video = Video(**vars(info), path=tmp_path.name, labels=(0,), split="train")
    for k in range(15, 20):
        (tmp_path / f"{k:02}.png").unlink()
    assert_kept(ClipDataset(Manifest(tmp_path.parent, ("a",), (video,)), RANGE))


def test_a_folder_that_has_grown_or_is_slow(tmp_path: Path) -> None:
    for k, rgb in enumerate(numbered_frames(20)):
        av.VideoFrame.from_ndarray(rgb, format="rgb24").save(str(tmp_path / f"{k:02}.png"))
    place = Location(str(tmp_path))
    info = replace(probe(place), num_frames=7)
    assert len(list(stored_frames(place, info))) == 7
    with pytest.raises(UnreadableVideo, match="longer than the limit"):
        list(stored_frames(place, info, limit_seconds=0))


def test_videos_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    held, names = KeptFrames(2**30), ("one", "other")
    for name in names:
        (tmp_path / name).mkdir()
    paths = [
        encode(tmp_path / name / "v.mp4", moving_noise(40)[:: 1 - 2 * k])
        for k, name in enumerate(names)
    ]
    for path in (*paths, *paths):
        assert_same(clips(dataset(path, kept=held)), clips(dataset(path)))
    of_file = dataset(paths[0])
    fewer = replace(of_file.manifest.videos[0], num_frames=12)
    assert_same(clips(one_line(of_file, fewer, held)), clips(one_line(of_file, fewer)))


def test_videos_of_one_shard_and_of_a_store(tmp_path: Path) -> None:
    paths = [encode(tmp_path / f"{k}.mp4", moving_noise(40)[k:]) for k in range(2)]
    shard, start, videos = b"", 0, []
    for path, line in zip(paths, dataset(*paths).manifest.videos, strict=True):
        shard += path.read_bytes()
        size = len(shard) - start
        videos.append(replace(line, path="memory://kept/shard", offset=start, num_bytes=size))
        start = len(shard)
    store = fsspec.filesystem("memory")
    store.pipe("/kept/shard", shard)
    there = ClipDataset(Manifest(tmp_path, ("a",), tuple(videos)), RANGE)
    expected = clips(dataset(*paths))
    for cache in (None, VideoCache(tmp_path / "cache", 2**30)):
        kept = replace(there, cache=cache, kept=KeptFrames(2**30))
        assert_same(clips(kept), expected)
    store.rm("/kept", recursive=True)
    shutil.rmtree(tmp_path / "cache")
    assert_same(clips(kept), expected)


def test_a_store_that_does_not_answer_is_asked_once(
    video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as long would be longer than a worker may take."""
    asked: list[Location] = []

    def silent(place: Location) -> bytes:
        asked.append(place)
        raise UnreadableVideo(str(place), "no answer")

    monkeypatch.setattr(dataset_module, "fetch", silent)
    of_file = dataset(video)
    (line,) = of_file.manifest.videos
    there = one_line(of_file, replace(line, path="memory://kept/v.mp4"), KeptFrames(2**30))
    with pytest.raises(TooManyBadVideos, match="no answer"):
        there[ClipRequest(0, SHAPES[0], seed=0)]
    assert len(asked) == 21  # of as many attempts to find a readable video


def test_a_video_that_is_slow_to_decode_as_a_whole_is_read_clip_by_clip(
    video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def slow(place: Location, info: Video, *, limit_seconds: float) -> Iterator[Any]:
        limits.append(limit_seconds)
        yield from stored_frames(place, replace(info, num_frames=2))
        raise UnreadableVideo(str(place), "decoding took longer than the limit")

    monkeypatch.setattr(dataset_module, "stored_frames", slow)
    held = KeptFrames(2**30)
    kept = dataset(video, kept=held)
    assert_same(clips(kept), clips(dataset(video)))
    assert (limits, held.num_bytes) == ([kept.limit_seconds / 4], 0)


def test_other_decoders_keep_nothing(video: Path) -> None:
    with pytest.raises(ValueError, match="those of 'pyav', not of 'torchcodec'"):
        replace(dataset(video, kept=KeptFrames(2**30)), decoder="torchcodec")


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
    assert 10 * FRAME_BYTES <= held.num_bytes <= held.max_bytes
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
    assert (held.num_bytes > 0, sent.kept.num_bytes, sent.kept.max_bytes) == (True, 0, 2**30)
    assert_same(clips(sent), expected)


def test_the_memory_of_frames_is_known_before_they_are_decoded(video: Path) -> None:
    held = KeptFrames(2**30)
    clips(dataset(video, kept=held))
    videos = dataset(video).manifest.videos
    assert 40 * FRAME_BYTES <= held.num_bytes <= 40 * (FRAME_BYTES * 2 + 8)
    assert decoded_bytes(videos) == 2 * 40 * FRAME_BYTES
    halves = [replace(videos[0], end_seconds=2.0), replace(videos[0], start_seconds=2.0)]
    assert decoded_bytes(halves) == decoded_bytes(videos)  # they are of one file
