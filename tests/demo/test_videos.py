"""The generated videos: the same bytes for the same seed, balanced, and readable as real files."""

from __future__ import annotations

import itertools
from dataclasses import fields

import av
import numpy as np
import pytest

from vcycle.data.decode.probe import probe
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import VideoInfo
from vcycle.demo.videos import CLASSES, HOWS, draw_scene, render, write_videos


def test_the_same_seed_writes_the_same_bytes_on_any_number_of_workers(tmp_path):
    one = write_videos(tmp_path / "a", train_videos=18, val_videos=2, seed=3, num_workers=1)
    two = write_videos(tmp_path / "b", train_videos=18, val_videos=2, seed=3, num_workers=2)
    other = write_videos(tmp_path / "c", train_videos=18, val_videos=2, seed=4, num_workers=1)
    for video_a, video_b, video_c in zip(one.videos, two.videos, other.videos, strict=True):
        bytes_a = (one.root / video_a.path).read_bytes()
        assert bytes_a == (two.root / video_b.path).read_bytes()
        assert bytes_a != (other.root / video_c.path).read_bytes()
    text = "manifest.csv"
    assert (one.root / text).read_bytes() == (two.root / text).read_bytes()


def test_the_manifest_states_what_the_files_hold(tmp_path):
    manifest = write_videos(tmp_path, train_videos=24, val_videos=12, seed=1, num_workers=1)
    assert Manifest.read(tmp_path) == manifest
    assert sorted(v.labels[0] for v in manifest.split("val").videos) == list(range(12))
    for video in manifest.videos:
        facts = probe(manifest.locate(video))
        assert facts == VideoInfo(**{f.name: getattr(video, f.name) for f in fields(VideoInfo)})
        with av.open(manifest.locate(video).uri) as container:
            stream = container.streams.video[0]
            frames = list(container.decode(stream))
            assert len(frames) == video.num_frames
            assert (frames[0].width, frames[0].height) == (video.width, video.height)
            assert stream.average_rate == video.frame_rate
            assert stream.codec_context.name == video.codec == "h264"
    for fact in ("frame_rate", "width", "height", "num_frames"):
        assert len({getattr(video, fact) for video in manifest.videos}) > 3


def test_writing_again_is_free_and_other_settings_are_refused(tmp_path):
    calls = []
    arguments = {"train_videos": 2, "val_videos": 1, "num_workers": 1}
    write_videos(tmp_path, **arguments, progress=lambda *count: calls.append(count))
    assert calls == [(1, 3), (2, 3), (3, 3)]
    write_videos(tmp_path, **arguments, progress=lambda *count: calls.append(count))
    assert len(calls) == 3
    with pytest.raises(ValueError, match="another directory"):
        write_videos(tmp_path, **arguments, seed=1)
    with pytest.raises(ValueError, match="val_videos is 0"):
        write_videos(tmp_path, train_videos=1, val_videos=0)


def test_train_and_val_share_no_hue_and_no_texture_scale():
    train = [draw_scene(seed=0, split="train", index=i) for i in range(200)]
    val = [draw_scene(seed=0, split="val", index=i) for i in range(200)]
    for fact in ("hue", "background_hue"):
        arcs = [{int(getattr(s, fact) * 12) for s in scenes} for scenes in (train, val)]
        assert arcs[0] == {0, 2, 4, 6, 8, 10}
        assert arcs[1] == {1, 3, 5, 7, 9, 11}
    assert max(s.texture_scale for s in val) <= min(s.texture_scale for s in train)


def test_the_classes_are_all_pairs_and_differ_in_pixels():
    assert len(CLASSES) == 12
    assert len(set(CLASSES)) == 12
    scene = draw_scene(seed=0, split="train", index=0)
    videos = [np.stack(list(render(scene, label))) for label in range(12)]
    assert videos[0].shape == (scene.num_frames, scene.height, scene.width, 3)
    for a, b in itertools.combinations(videos, 2):
        assert np.abs(a.astype(int) - b).mean() > 0.5


@pytest.mark.parametrize("index", range(3))
def test_the_sprite_moves_as_its_class_says(index):
    """Frames of one scene differ between motions only by the sprite: the median is without it."""
    scene = draw_scene(seed=5, split="train", index=index)
    videos = np.stack([np.stack(list(render(scene, HOWS.index(how)))) for how in HOWS]).astype(int)
    empty = np.median(videos, axis=0)
    sprite = np.abs(videos - empty).sum(axis=-1) > 60  # (motion, T, H, W)
    area = sprite.sum(axis=(2, 3))
    rows = (sprite.sum(axis=3) * np.arange(scene.height)).sum(axis=2) / np.maximum(area, 1)
    columns = (sprite.sum(axis=2) * np.arange(scene.width)).sum(axis=2) / np.maximum(area, 1)

    def share_rising(track):
        steps = np.diff(track)
        return (steps[np.abs(steps) > 0.2] > 0).mean()

    assert share_rising(rows[HOWS.index("falls")]) > 0.6
    assert share_rising(rows[HOWS.index("rises")]) < 0.4
    assert share_rising(area[HOWS.index("grows")]) > 0.6
    assert abs(share_rising(columns[HOWS.index("slides")]) - 0.5) > 0.15
