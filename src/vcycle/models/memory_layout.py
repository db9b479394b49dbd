"""The memory format of a model's weights, which its clips should have too.

In: a model. Out: its convolutions of clips in ``torch.channels_last_3d``; the format that it has.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter


def memory_format(model: nn.Module) -> torch.memory_format:
    """``torch.channels_last_3d`` if a convolution's weights have it, else contiguous.

    Weights of 1 x 1 x 1 have both formats and do not count.
    """
    if any(not kernel.is_contiguous() for kernel in _kernels(model)):
        return torch.channels_last_3d
    return torch.contiguous_format


def to_channels_last(model: nn.Module) -> None:
    """Put the weights of a model's convolutions of clips in channels-last, in place.

    ``model.to(memory_format=torch.channels_last_3d)`` asks it of all that has four or five
    dimensions: it fails for a layer that takes a frame at a time, and changes tables of positions.
    """
    for kernel in _kernels(model):
        kernel.data = kernel.data.contiguous(memory_format=torch.channels_last_3d)


def _kernels(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights of convolutions of clips, of lazy ones none before they have their sizes."""
    for layer in model.modules():
        if isinstance(layer, (nn.Conv3d, nn.ConvTranspose3d)):
            kernel = layer._parameters.get("weight")  # none if it is computed from others
            if kernel is not None and not isinstance(kernel, UninitializedParameter):
                yield kernel
