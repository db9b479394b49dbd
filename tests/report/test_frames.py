"""Frames in a report: at the size that the model sees; none if the videos are not there."""

from __future__ import annotations

import base64
import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from tests.conftest import small_run
from vcycle.data.manifest import Manifest
from vcycle.report.frames import ValidationVideos, data_uri
from vcycle.schedule.shape import Shape
from vcycle.train.same_run import identity


def image(uri: str) -> Image.Image:
    head, data = uri.split(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def videos_of(folder: Path) -> ValidationVideos:
    return ValidationVideos(folder, small_run(folder), identity(Manifest.read(folder).split("val")))


def test_a_clip_is_shown_as_the_model_gets_it(synthetic_videos: Path) -> None:
    videos = videos_of(synthetic_videos)
    shapes = [Shape(4, 16, 16), Shape(16, 32, 32)]
    sampled = videos.sampled(shapes)
    assert sampled is not None
    assert image(sampled.whole).size == (sampled.video.width, sampled.video.height)
    for shape, strip, count in zip(shapes, sampled.strips, (4, 8), strict=True):
        assert [image(frame).size for frame in strip.frames] == [
            (shape.width, shape.height)
        ] * count
        assert len(strip.grid.frames) == shape.frames
    again = videos.sampled(shapes)
    assert again == sampled  # the draw is the run's
    view = videos.view(str(sampled.video.source))
    assert view is not None
    assert len(view.frames) == 4
    assert (
        videos.view("unknown.mp4") == "the manifest cannot tell: no line of it is about this video"
    )


def test_no_frames_if_the_videos_are_gone_changed_or_broken(
    synthetic_videos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "videos"
    shutil.copytree(synthetic_videos, folder)
    known = identity(Manifest.read(folder).split("val"))
    for file in folder.glob("val/*.mp4"):
        file.write_bytes(b"no video")
    broken = ValidationVideos(folder, small_run(folder), known)
    assert broken.sampled([Shape(4, 16, 16)]) is None
    assert "do not decode" in broken.reason
    assert "it does not decode: " in broken.view("val/00000.mp4")
    changed = ValidationVideos(folder, small_run(folder), {**known, "videos_sha256": "other"})
    assert changed.sampled([Shape(4, 16, 16)]) is None
    assert "has changed since the run" in changed.reason
    shutil.rmtree(folder)
    gone = ValidationVideos(folder, small_run(folder), known)
    assert gone.sampled([Shape(4, 16, 16)]) is None
    assert "cannot be reached" in gone.reason


def test_parts_of_one_video_are_not_taken_for_each_other(
    synthetic_videos: Path, tmp_path: Path
) -> None:
    manifest = Manifest.read(synthetic_videos)
    (*others, last) = manifest.videos
    parts = (replace(last, end_seconds=0.5), replace(last, start_seconds=0.5))
    replace(manifest, root=tmp_path, videos=(*others, *parts)).write()
    shutil.copytree(synthetic_videos / "val", tmp_path / "val")
    shutil.copytree(synthetic_videos / "train", tmp_path / "train")
    videos = videos_of(tmp_path)
    assert not isinstance(videos.view(others[-1].path), str)
    first, second = (videos.view(part.name) for part in parts)
    assert not isinstance(first, str)
    assert not isinstance(second, str)
    assert max(first.grid.frames) < min(second.grid.frames)
    assert "no line of it is about this video" in videos.view(last.path)


def test_lines_that_are_the_same_are_not_told_apart(synthetic_videos: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(synthetic_videos)
    (*_, last) = manifest.videos
    replace(manifest, root=tmp_path, videos=(*manifest.videos, last)).write()
    shutil.copytree(synthetic_videos / "val", tmp_path / "val")
    shutil.copytree(synthetic_videos / "train", tmp_path / "train")
    assert "2 lines of it are about this video" in videos_of(tmp_path).view(last.path)


def test_a_large_frame_is_made_smaller() -> None:
    assert image(data_uri(np.zeros((300, 600, 3), np.uint8))).size == (256, 128)


def test_a_frame_keeps_its_colours() -> None:
    frame = np.zeros((8, 8, 3), np.uint8)
    frame[:, :4] = (250, 10, 20)
    assert np.abs(np.asarray(image(data_uri(frame)), int) - frame).max() < 40
