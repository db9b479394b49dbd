"""The scenes: what differs between splits and classes, in numbers and in pixels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from vcycle.demo.scenes import CLASSES, HOWS, draw_scene, render


def test_train_and_val_share_no_base_hue_and_no_texture_scale():
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
def test_the_shape_moves_as_its_class_says(index):
    """Frames of one scene differ between motions only by the shape: the median is without it."""
    scene = draw_scene(seed=5, split="train", index=index)
    videos = np.stack([np.stack(list(render(scene, HOWS.index(how)))) for how in HOWS]).astype(int)
    empty = np.median(videos, axis=0)
    moving = np.abs(videos - empty).sum(axis=-1) > 60  # (motion, T, H, W)
    area = moving.sum(axis=(2, 3))
    rows = (moving.sum(axis=3) * np.arange(scene.height)).sum(axis=2) / np.maximum(area, 1)
    columns = (moving.sum(axis=2) * np.arange(scene.width)).sum(axis=2) / np.maximum(area, 1)

    def share_rising(track):
        steps = np.diff(track)
        return (steps[np.abs(steps) > 0.2] > 0).mean()

    assert share_rising(rows[HOWS.index("falls")]) > 0.6
    assert share_rising(rows[HOWS.index("rises")]) < 0.4
    assert share_rising(area[HOWS.index("grows")]) > 0.6
    assert abs(share_rising(columns[HOWS.index("slides")]) - 0.5) > 0.15
