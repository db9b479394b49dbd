"""Scaling on devices that have no kernel for bytes, checked where both ways work."""

from __future__ import annotations

import torch

from data.encode import moving_noise
from vcycle.data.resample import _scale, _scale_in_floats


def test_scaling_in_floats_is_scaling_in_bytes():
    """A GPU has no kernel for bytes."""
    images = torch.from_numpy(moving_noise(3)).permute(0, 3, 1, 2)
    for height, width in ((20, 24), (64, 96), (100, 111), (7, 90)):
        in_bytes = _scale(images, height, width)
        in_floats = _scale_in_floats(images, height, width)
        assert in_floats.dtype == torch.uint8
        assert (in_bytes.int() - in_floats.int()).abs().max() <= 1
