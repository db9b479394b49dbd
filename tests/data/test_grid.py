"""Sampling grids against the paper's ranges, by property and by worked example."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from vcycle.data.grid import Box, GridRange, View, draw_grid, view_grid
from vcycle.data.metadata import VideoInfo
from vcycle.schedule.shape import Shape

KINETICS = GridRange(Shape(32, 224, 224), 2, (256, 340))
INFO = VideoInfo(num_frames=300, frame_rate=30, duration_seconds=10, width=340, height=256)

infos = st.builds(
    VideoInfo,
    num_frames=st.integers(1, 400),
    frame_rate=st.floats(1, 120),
    duration_seconds=st.just(1.0),
    width=st.integers(1, 500),
    height=st.integers(1, 500),
)
shapes = st.builds(Shape, st.integers(1, 32), st.integers(1, 224), st.integers(1, 224))
rates = st.sampled_from([None, 30.0, 12.5])


def check_inside(grid, info, shape):
    assert len(grid.frames) == shape.frames
    assert all(0 <= a <= b < info.num_frames for a, b in itertools.pairwise(grid.frames))
    assert (grid.height, grid.width) == (shape.height, shape.width)
    assert grid.frame_size == (info.height, info.width)
    box = grid.box
    assert box.height >= 1
    assert box.width >= 1
    assert 0 <= box.top <= info.height - box.height
    assert 0 <= box.left <= info.width - box.width
    # Pixels are square: both sides are at one scale, rounded to a pixel.
    assert abs(box.height * shape.width - box.width * shape.height) <= shape.height + shape.width


@given(infos, shapes, rates, st.integers(0, 2**32))
def test_any_grid_lies_inside_its_video(info, shape, rate, seed):
    grid_range = dataclasses.replace(KINETICS, frame_rate=rate)
    grid = draw_grid(info, shape, grid_range, rng=np.random.default_rng(seed), flip=True)
    check_inside(grid, info, shape)


@given(infos, shapes, rates, st.integers(1, 10), st.sampled_from([1, 3]))
def test_any_view_lies_inside_its_video_and_never_mirrors(info, shape, rate, clips, crops):
    grid_range = dataclasses.replace(KINETICS, frame_rate=rate)
    for clip in range(clips):
        for crop in range(crops):
            view = View(clip, clips, crop, crops)
            grid = view_grid(info, shape, grid_range, view=view)
            check_inside(grid, info, shape)
            assert not grid.flip
            assert grid == view_grid(info, shape, grid_range, view=view)


@pytest.mark.parametrize(("frames", "strides"), [(32, {2}), (16, {2, 3, 4}), (8, set(range(2, 9)))])
def test_the_stride_is_uniform_in_the_papers_range(frames, strides):
    """[2, 2 T/t]: 2; 2 to 4; 2 to 8 for the 32-frame model."""
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(2000):
        grid = draw_grid(INFO, Shape(frames, 112, 112), KINETICS, rng=rng, flip=False)
        steps = set(np.diff(grid.frames).tolist())
        assert len(steps) == 1
        drawn.append(steps.pop())
    assert set(drawn) == strides
    counts = np.array([drawn.count(stride) for stride in strides])
    assert counts.min() > 0.8 * 2000 / len(strides)


@pytest.mark.parametrize("size", [112, 158, 224])
def test_the_short_side_is_uniform_in_the_papers_range(size):
    """[256 h / H, 340]: mean as for a uniform variable, ends reached, square source pixels."""
    rng = np.random.default_rng(0)
    low = 256 * size / 224
    sides, tops = [], []
    info = dataclasses.replace(INFO, width=3400, height=2560)
    for _ in range(4000):
        grid = draw_grid(info, Shape(8, size, size), KINETICS, rng=rng, flip=False)
        assert abs(grid.box.height - grid.box.width) <= 1
        sides.append(info.height * size / grid.box.height)
        tops.append(grid.box.top / (info.height - grid.box.height))
    assert low - 0.5 < min(sides) < low + 1
    assert 339 < max(sides) < 340.5
    assert np.mean(sides) == pytest.approx((low + 340) / 2, abs=0.02 * low)
    assert np.mean(tops) == pytest.approx(0.5, abs=0.02)


def test_the_short_side_of_a_clip_of_another_aspect_ratio():
    """By its side that is least reduced, so that the crop fits: 68 / 96, not 45 / 64."""
    grid_range = GridRange(Shape(8, 64, 96), 1, (64, 85))
    assert grid_range.short_sides(Shape(4, 45, 68)) == (pytest.approx(64 * 68 / 96), 85)


def test_every_start_is_equally_likely():
    rng = np.random.default_rng(0)
    info = dataclasses.replace(INFO, num_frames=70)
    first = [
        draw_grid(info, Shape(32, 224, 224), KINETICS, rng=rng, flip=True).frames[0]
        for _ in range(2100)
    ]
    assert set(first) == set(range(7))  # 70 frames hold a span of 64 at 0 to 6
    assert min(first.count(start) for start in range(7)) > 220


def test_flips_happen_half_the_time_and_only_where_allowed():
    rng = np.random.default_rng(0)
    shape = Shape(4, 64, 64)
    flips = [draw_grid(INFO, shape, KINETICS, rng=rng, flip=True).flip for _ in range(1000)]
    assert 430 < sum(flips) < 570
    assert not any(draw_grid(INFO, shape, KINETICS, rng=rng, flip=False).flip for _ in range(100))


def test_frame_rates_are_normalised():
    """At a target of 30, stride 2 of a 60 frames/s video is 4 of its frames; of 15, one."""
    for rate, step in ((60, 4), (30, 2), (15, 1)):
        info = dataclasses.replace(INFO, frame_rate=rate, num_frames=1000)
        grid_range = dataclasses.replace(KINETICS, frame_rate=30.0)
        grid = view_grid(info, KINETICS.base, grid_range, view=View())
        assert set(np.diff(grid.frames)) == {step}


def test_a_rate_that_does_not_divide_a_videos_keeps_the_span_of_a_clip():
    """15 frames a second of a video of 25: frames lie 5/3 apart, each time rounded down."""
    info = dataclasses.replace(INFO, frame_rate=25, num_frames=1000)
    grid_range = GridRange(Shape(16, 224, 224), 1, (256, 340), frame_rate=15.0)
    frames = view_grid(info, grid_range.base, grid_range, view=View(0, 2)).frames
    assert frames == (0, 1, 3, 5, 6, 8, 10, 11, 13, 15, 16, 18, 20, 21, 23, 25)


def test_a_short_video_repeats_its_last_frame():
    info = dataclasses.replace(INFO, num_frames=5)
    grid = view_grid(info, Shape(6, 224, 224), KINETICS, view=View())
    assert grid.frames == (0, 2, 4, 4, 4, 4)
    one = dataclasses.replace(INFO, num_frames=1)
    rng = np.random.default_rng(0)
    assert draw_grid(one, Shape(4, 8, 8), KINETICS, rng=rng, flip=True).frames == (0, 0, 0, 0)


def test_views_by_hand():
    """340 x 256, 300 frames: the 256 -> 224 centre crop, and left, centre, right at 224."""
    shape = KINETICS.base
    middle = view_grid(INFO, shape, KINETICS, view=View())
    assert middle.frames == tuple(range(118, 182, 2))
    assert middle.box == Box(16, 58, 224, 224)
    starts = [view_grid(INFO, shape, KINETICS, view=View(k, 5)).frames[0] for k in range(5)]
    assert starts == [0, 59, 118, 177, 236]
    three = [view_grid(INFO, shape, KINETICS, view=View(0, 1, k, 3)).box for k in range(3)]
    assert three == [Box(0, 0, 256, 256), Box(0, 42, 256, 256), Box(0, 84, 256, 256)]
    tall = dataclasses.replace(INFO, width=256, height=340)
    three = [view_grid(tall, shape, KINETICS, view=View(0, 1, k, 3)).box for k in range(3)]
    assert three == [Box(0, 0, 256, 256), Box(42, 0, 256, 256), Box(84, 0, 256, 256)]
    wide = dataclasses.replace(INFO, width=400, height=100)  # scaled up until 224 x 112 fits
    assert view_grid(wide, Shape(8, 224, 112), KINETICS, view=View(0, 1, 2, 3)).box == Box(
        0, 350, 100, 50
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stride": 0}, "stride 0: give a whole number of frames"),
        ({"stride": 1.5}, "stride 1.5: give a whole number of frames"),
        ({"short_side": (256, 300, 340)}, "give its two ends"),
        ({"short_side": (340, 256)}, "increasing interval"),
        ({"short_side": (200, 256)}, "224 pixels"),
        ({"frame_rate": 0.0}, "frame_rate 0.0: give a positive"),
    ],
)
def test_a_range_that_cannot_be_drawn_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(KINETICS, **change)


@pytest.mark.parametrize("view", [(1, 1), (0, 0), (0, 1, 3, 3), (0, 1, 0, 2)])
def test_a_view_that_is_none_of_its_number_is_refused(view):
    with pytest.raises(ValueError, match=r"num_c.* \d: give|count both from 0"):
        View(*view)


SEGMENTS = dataclasses.replace(KINETICS, segments=True, inverse_uniform=True)


def test_segments_by_hand():
    """64 segments of 100 frames; of a 5-frame video, four segments of two frames each."""
    info = dataclasses.replace(INFO, num_frames=5)
    assert view_grid(info, Shape(4, 224, 224), SEGMENTS, view=View()).frames == (0, 1, 2, 3)
    info = dataclasses.replace(INFO, num_frames=101)
    middles = view_grid(info, Shape(10, 224, 224), SEGMENTS, view=View()).frames
    assert middles == tuple(range(5, 101, 10))


@given(infos, shapes, st.integers(0, 2**32))
def test_a_segment_clip_takes_one_frame_of_each_part(info, shape, seed):
    grid = draw_grid(info, shape, SEGMENTS, rng=np.random.default_rng(seed), flip=True)
    check_inside(grid, info, shape)
    part = (info.num_frames - 1) / shape.frames
    for i, frame in enumerate(grid.frames):
        assert i * part - 0.501 <= frame <= (i + 1) * part + 0.501


@pytest.mark.parametrize(("size", "mean"), [(112, 195.5), (158, 237.4), (224, 285.6)])
def test_inverse_uniform_short_sides(size, mean):
    """The means of the official code's own draws, whose interval ends at 320."""
    official = dataclasses.replace(SEGMENTS, short_side=(256, 320))
    rng = np.random.default_rng(0)
    sides = [official.draw_short_side(Shape(8, size, size), rng) for _ in range(4000)]
    assert 256 * size / 224 <= min(sides)
    assert max(sides) <= 320
    assert np.mean(sides) == pytest.approx(mean, rel=0.01)


@pytest.mark.parametrize(
    ("num_frames", "expected"),
    [
        (30, "1 3 4 6 8 10 12 13 15 17 19 21 23 24 26 28"),
        (45, "1 4 7 9 12 15 17 20 23 26 29 31 34 37 39 42"),
        (200, "6 18 31 43 56 68 81 93 106 118 130 143 155 168 180 193"),
        (
            30,
            "0 1 2 3 4 5 5 6 7 8 9 10 11 12 13 14 14 15 16 17 18 19 20 21 22 23 24 24 25 26 27 28",
        ),
    ],
)
def test_segment_views_are_those_of_the_official_code(num_frames, expected):
    """Golden values of its Something-Something V2 evaluation at 16 frames."""
    frames = tuple(int(frame) for frame in expected.split())
    info = dataclasses.replace(INFO, num_frames=num_frames)
    shape = Shape(len(frames), 224, 224)
    assert view_grid(info, shape, SEGMENTS, view=View()).frames == frames


def test_every_frame_of_a_video_may_be_the_one_of_its_segment() -> None:
    info = VideoInfo(num_frames=33, frame_rate=30, duration_seconds=1, width=40, height=40)
    shape = Shape(4, 32, 32)
    segments = GridRange(shape, 1, (32, 40), segments=True)
    rng = np.random.default_rng(0)
    seen = {
        frame
        for _ in range(400)
        for frame in draw_grid(info, shape, segments, rng=rng, flip=False).frames
    }
    assert seen == set(range(33))
