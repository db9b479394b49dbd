"""Resampling: frames that change within a clip, and devices that have no kernel for bytes."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from av.video.reformatter import ColorRange

from tests.encode import encode_combed, moving_noise
from vcycle.data.decode.resample import (
    Resampler,
    _scale,
    _scale_in_floats,
    crop_and_scale,
    orientation,
    stored_box,
)
from vcycle.data.grid import Box, Grid

GRID = Grid((0,), Box(7, 11, 40, 50), 32, 36, False)


def small_frame(color_range=ColorRange.MPEG):
    frame = av.VideoFrame.from_ndarray(moving_noise(1)[0], format="rgb24")
    frame = frame.reformat(format="yuv420p")
    frame.pts, frame.color_range = 0, color_range
    return frame


def turned_over(frame):
    """Upside down without a copy: its lines are stored backwards."""
    graph = av.filter.Graph()
    size = {"width": frame.width, "height": frame.height}
    source = graph.add_buffer(**size, format="yuv420p", time_base=Fraction(1, 25))
    flip, sink = graph.add("vflip"), graph.add("buffersink")
    source.link_to(flip)
    flip.link_to(sink)
    graph.configure()
    graph.push(frame)
    return graph.pull()


def test_frames_of_other_layouts_may_follow_each_other():
    kinds = [small_frame(), turned_over(small_frame()), small_frame(ColorRange.JPEG)]
    assert kinds[1].planes[0].line_size < 0
    alone = [Resampler(GRID)(kind).copy() for kind in kinds]
    assert not np.array_equal(alone[0], alone[2])
    for first in range(3):
        resample = Resampler(GRID)
        for k in (first, 0, 1, 2, 0):
            assert np.array_equal(resample(kinds[k]), alone[k]), f"{k} after {first}"


@pytest.mark.parametrize("width", [144, 143])
def test_the_fields_of_an_interlaced_frame_are_scaled_together(tmp_path, width):
    """Whether the box is the whole frame or not."""
    with av.open(str(encode_combed(tmp_path / "v.mp4"))) as container:
        frame = next(container.decode(video=0))
    assert frame.interlaced_frame
    small = Resampler(Grid((0,), Box(0, 0, 96, width), 48, 72, False))(frame).astype(int)
    assert np.abs(np.diff(small, axis=0)).mean() < 10
    assert small.mean() == pytest.approx(120, abs=5)


@pytest.mark.parametrize("turns", [0, 1])
def test_a_frame_of_another_size_shows_the_same_part(turns):
    """As in the recording of a call, whose size follows the bandwidth."""
    rgb = moving_noise(1)[0]
    large = rgb.repeat(3, 0).repeat(3, 1)
    size = rgb.shape[1::-1] if turns else rgb.shape[:2]
    box = Box(11, 7, 30, 40)
    grid = Grid((0,), box, 30, 40, False, frame_size=size)
    box_of_large = Box(33, 21, 90, 120)
    assert grid.box_in(*size) == box
    assert grid.box_in(3 * size[0], 3 * size[1]) == box_of_large
    assert stored_box(grid, *large.shape[:2], turns) == stored_box(
        Grid((0,), box_of_large, 30, 40, False), *large.shape[:2], turns
    )
    shown = Grid((0,), Box(8, 12, 32, 48), 32, 48, False, frame_size=rgb.shape[:2])
    resample = Resampler(shown)
    small = resample(av.VideoFrame.from_ndarray(rgb, format="rgb24")).astype(int)
    scaled = resample(av.VideoFrame.from_ndarray(large, format="rgb24"))
    assert np.abs(small - scaled).mean() < 3
    scaled = crop_and_scale(torch.from_numpy(large[None]), shown)[0].numpy()
    assert np.abs(small - scaled).mean() < 3


def test_scaling_in_floats_is_scaling_in_bytes():
    """A GPU has no kernel for bytes."""
    images = torch.from_numpy(moving_noise(3)).permute(0, 3, 1, 2)
    for height, width in ((20, 24), (64, 96), (100, 111), (7, 90)):
        in_bytes = _scale(images, height, width)
        in_floats = _scale_in_floats(images, height, width)
        assert in_floats.dtype == torch.uint8
        assert (in_bytes.int() - in_floats.int()).abs().max() <= 1


@pytest.mark.parametrize(
    ("degrees", "turns"), [(0, 0), (-1, 0), (1, 0), (44, 0), (46, 1), (90, 1), (-90, 3), (359, 0)]
)
def test_a_frame_is_turned_to_the_nearest_quarter(degrees, turns):
    frame = SimpleNamespace(rotation=degrees, side_data={})
    assert orientation(frame) == (False, turns)
