"""Find the memory format of a model's weights, which its clips should have too.

In: a model. Out: ``torch.channels_last_3d`` or ``torch.contiguous_format``.
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
