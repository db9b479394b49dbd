"""The scenes: what differs between splits and classes, in numbers, in pixels, on coarse grids."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from vcycle.data.decode.encode import encode_frames
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import GridRange, View, view_grid
from vcycle.data.metadata import Location
from vcycle.demo.scenes import CLASSES, HOWS, WHATS, draw_scene, render
from vcycle.schedule.shape import Shape

FULL = GridRange(Shape(16, 64, 64), stride=1, short_side=(66, 84))
SMALL = GridRange(Shape(8, 45, 45), stride=2, short_side=(46, 59))


def frames_of(scene, what, how="rises"):
    """(T, H, W, 3) integers."""
    frames = render(scene, CLASSES.index(f"{what} {how}"))
    return np.stack(list(frames)).astype(int)


def test_train_and_val_share_no_base_hue_and_no_texture_scale():
    train = [draw_scene(seed=0, split="train", index=i) for i in range(200)]
    val = [draw_scene(seed=0, split="val", index=i) for i in range(200)]
    for fact in ("hue", "background_hue"):
        arcs = [{int(getattr(s, fact) * 12) for s in scenes} for scenes in (train, val)]
        assert arcs[0] == {0, 2, 4, 6, 8, 10}
        assert arcs[1] == {1, 3, 5, 7, 9, 11}
    assert max(s.texture_scale for s in val) <= min(s.texture_scale for s in train)


def test_the_classes_are_all_pairs_and_differ_in_pixels():
    assert len(set(CLASSES)) == len(WHATS) * len(HOWS) == 12
    scene = draw_scene(seed=0, split="train", index=0)
    videos = [np.stack(list(render(scene, label))) for label in range(12)]
    assert videos[0].shape == (scene.num_frames, scene.height, scene.width, 3)
    for a, b in itertools.combinations(videos, 2):
        assert np.abs(a.astype(int) - b).mean() > 0.5


def test_golden_frames():
    """Statistics, not hashes: a processor may round a sine otherwise."""
    scene = draw_scene(seed=0, split="val", index=3)
    frames = {label: frames_of(scene, *label) for label in GOLDEN}
    found = {
        label: [each[4:6].mean(), each[4:6].std(), np.diff(each[4:6], axis=1).std()]
        for label, each in frames.items()
    }
    for label, numbers in GOLDEN.items():
        np.testing.assert_allclose(found[label], numbers, atol=0.01)
    assert (frames_of(scene, *next(iter(GOLDEN))) == next(iter(frames.values()))).all()


@pytest.mark.parametrize("index", range(4))
def test_the_shape_moves_as_its_class_says(index):
    """Of 16 frames, from the first or from the middle: a shape that returns has turned in them."""
    scene = draw_scene(seed=5, split="train", index=index)
    for how in HOWS:
        empty = frames_of(replace(scene, radius=0.0), "steady ring", how)
        moving = np.abs(frames_of(scene, "steady ring", how) - empty).sum(axis=-1) > 60
        turns = np.exp(2j * np.pi * np.arange(scene.height) / (scene.height + 8))
        height = np.angle((moving.sum(axis=2) * turns).sum(axis=1))  # it is cyclic
        for first in (0, (scene.num_frames - 16) // 2):
            steps = np.diff(height[first : first + 16 : 3])
            falling = ((steps + np.pi) % (2 * np.pi) > np.pi).mean()
            low, high = {"rises": (0, 0), "falls": (1, 1), "returns": (0.1, 0.9)}[how]
            assert low <= falling <= high


@pytest.mark.parametrize("what", WHATS)
def test_no_frame_tells_motions_apart(what):
    """Each frame of one motion is a frame of another that starts elsewhere; starts are uniform."""
    scene = draw_scene(seed=6, split="train", index=1)
    falls = frames_of(scene, what, "falls")
    for k in (0, 7, scene.num_frames - 1):
        start = (scene.start + 2 * scene.speed * k / scene.frame_rate) % 1
        rises = frames_of(replace(scene, start=start), what, "rises")
        assert np.abs(rises[k] - falls[k]).max() <= 1  # the last digit of its place
    starts = sorted(draw_scene(seed=6, split="val", index=i).start for i in range(400))
    assert np.abs(starts - np.linspace(0, 1, 400)).max() < 0.1


def test_a_shape_that_returns_goes_on_until_it_turns():
    scene = draw_scene(seed=6, split="train", index=2)
    before = int(scene.turn_seconds * scene.frame_rate)
    assert 4 < before <= 12
    down = frames_of(replace(scene, turn_phase=0.0), "steady ring", "returns")
    falls = frames_of(scene, "steady ring", "falls")
    assert (down[:before] == falls[:before]).all()
    assert (down[before + 2 :] != falls[before + 2 :]).any(axis=(1, 2, 3)).all()
    start = (scene.start + scene.speed * scene.turn_seconds) % 1
    up = frames_of(replace(scene, turn_phase=1.0), "steady ring", "returns")
    rises = frames_of(replace(scene, start=start), "steady ring", "rises")
    assert np.abs(up[:before] - rises[:before]).max() <= 1


@pytest.mark.parametrize("how", HOWS)
def test_every_second_frame_of_a_flickering_ring_is_that_of_a_steady_one(how):
    scene = draw_scene(seed=0, split="train", index=3)
    flickering = frames_of(scene, "flickering ring", how)
    steady = frames_of(scene, "steady ring", how)
    other = frames_of(replace(scene, starts_dim=not scene.starts_dim), "steady ring", how)
    assert (flickering[0::2] == steady[0::2]).all()
    assert (flickering[1::2] == other[1::2]).all()
    lights = [draw_scene(seed=0, split="train", index=i).starts_dim for i in range(400)]
    assert 0.4 < np.mean(lights) < 0.6


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Clips of validation on each grid, from H.264: {(grid, what): (N, T, H, W) luma}.

    "opposite" are steady rings, bright if those of the same scene are dim.
    """
    folder = tmp_path_factory.mktemp("videos")
    found = {}
    for index, what in itertools.product(range(8), (*WHATS, "opposite")):
        scene = draw_scene(seed=2, split="val", index=index)
        is_opposite = what == "opposite"
        starts_dim = scene.starts_dim != is_opposite
        scene = replace(scene, start=0.6, speed=0.2, starts_dim=starts_dim)  # it stays in sight
        file = folder / f"{index}-{what}.mp4"
        label = CLASSES.index(f"{'steady ring' if is_opposite else what} rises")
        rate = scene.frame_rate
        encode_frames(file, render(scene, label), frame_rate=rate, key_interval=rate, quality=30)
        place = Location(str(file))
        for name, grid in (("full", FULL), ("small", SMALL)):
            clip = read_clip(place, view_grid(probe(place), grid.base, grid, view=View()))
            found.setdefault((name, what), []).append(clip.astype(float).mean(axis=-1))
    return {key: np.stack(each) for key, each in found.items()}


def energy(clips, axis):
    """Of the second differences along an axis of (N, T, H, W), one a clip."""
    return (np.diff(clips, n=2, axis=axis) ** 2).mean(axis=(1, 2, 3))


def test_flicker_is_seen_in_all_frames_and_not_in_every_second(clips):
    def gains(grid):
        found = energy(clips[grid, "flickering ring"], 1)
        return [np.log(found / energy(clips[grid, w], 1)) for w in ("steady ring", "opposite")]

    assert np.min(gains("full")) > 1
    assert np.abs(gains("small")).min(axis=0).max() < 0.3  # it is as one of the two


GOLDEN = {
    ("square", "rises"): [101.680, 40.997, 10.773],
    ("cross", "falls"): [100.466, 37.499, 10.838],
    ("steady ring", "returns"): [100.683, 38.081, 10.836],
    ("flickering ring", "rises"): [99.406, 37.710, 11.300],
}
