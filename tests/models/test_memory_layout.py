"""The layout of a model's weights decides the layout of its clips."""

from __future__ import annotations

import torch
from torch import nn

from vcycle.models import memory_format, to_channels_last


def test_a_kernel_that_spans_pixels_decides() -> None:
    model = nn.Sequential(nn.Conv3d(3, 4, 1), nn.Conv3d(4, 4, 3))
    assert memory_format(model) is torch.contiguous_format
    model.to(memory_format=torch.channels_last_3d)
    assert memory_format(model) is torch.channels_last_3d


def test_other_weights_say_nothing() -> None:
    model = nn.Sequential(nn.Conv3d(3, 4, 1), nn.Linear(4, 4).requires_grad_(False))
    model.to(memory_format=torch.channels_last_3d)
    assert memory_format(model) is torch.contiguous_format


def test_only_convolutions_of_clips_are_put_in_channels_last() -> None:
    """The weights of a layer that takes a frame at a time have four dimensions."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3), nn.Linear(4, 4))
    model.register_buffer("positions", torch.randn(1, 3, 4, 4))
    before = [parameter.clone() for parameter in model.parameters()]
    to_channels_last(model)
    assert memory_format(model) is torch.channels_last_3d
    assert model[0].weight.is_contiguous()
    torch.testing.assert_close(list(model.parameters()), before, rtol=0, atol=0)
