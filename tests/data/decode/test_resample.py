"""Resampling: frames that change within a clip, and devices that have no kernel for bytes."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from av.video.reformatter import ColorRange

from tests.encode import moving_noise
from vcycle.data.decode.resample import Resampler, _scale, _scale_in_floats, orientation
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
