"""The layout of a model's weights decides the layout of its clips."""

from __future__ import annotations

import torch
from torch import nn

from vcycle.models import memory_format


def test_a_kernel_that_spans_pixels_decides() -> None:
    model = nn.Sequential(nn.Conv3d(3, 4, 1), nn.Conv3d(4, 4, 3))
    assert memory_format(model) is torch.contiguous_format
    model.to(memory_format=torch.channels_last_3d)
    assert memory_format(model) is torch.channels_last_3d


def test_other_weights_say_nothing() -> None:
    model = nn.Sequential(nn.Conv3d(3, 4, 1), nn.Linear(4, 4).requires_grad_(False))
    model.to(memory_format=torch.channels_last_3d)
    assert memory_format(model) is torch.contiguous_format
