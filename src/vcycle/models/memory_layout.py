"""The memory format of a model's weights, which its clips should have too.

In: a model. Out: its convolutions of clips in ``torch.channels_last_3d``; the format that it has.
"""

from __future__ import annotations

import torch
from torch import nn


def memory_format(model: nn.Module) -> torch.memory_format:
    """``torch.channels_last_3d`` if a convolution's weights have it, else contiguous.

    Weights of 1 x 1 x 1 have both formats and do not count.
    """
    kernels = (parameter for parameter in model.parameters() if parameter.dim() == 5)
    if any(not kernel.is_contiguous() for kernel in kernels):
        return torch.channels_last_3d
    return torch.contiguous_format


def to_channels_last(model: nn.Module) -> None:
    """Put the weights of a model's convolutions of clips, which have five dimensions, in channels-last.

    ``model.to(memory_format=torch.channels_last_3d)`` asks it of four dimensions, too, and so fails
    for a model of which some layers take a frame at a time.
    """
    for parameter in model.parameters():
        if parameter.dim() == 5:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last_3d)
