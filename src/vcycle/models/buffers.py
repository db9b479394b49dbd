"""Leave a model as it was.

In: a model that is about to run on clips that do not count. Out: its buffers are the same tensors,
with the same values, in the same places; its modes and what its norms collect are as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vcycle.models.norm import sub_batch_norms


@contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Within this, the model may write to its buffers, and put others in their places.

    One that has changed its size, as a table of positions for the last clip does, is left as it is:
    the model may remember of what size it is.
    """
    buffers = [
        (layer, key, buffer, buffer.to("cpu", copy=True))
        for layer in model.modules()
        for key, buffer in layer.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for layer, key, buffer, value in buffers:
                now = getattr(layer, key, None)
                if now is not None and now.shape == value.shape:
                    setattr(layer, key, buffer.copy_(value))


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Within this, the model may also change its modes, norm groups, and what norms collect."""
    modes = [(module, module.training) for module in model.modules()]
    norms = [(norm, norm.norm_group, norm._pending) for norm in sub_batch_norms(model)]
    try:
        with restored_buffers(model):
            yield
    finally:
        for module, training in modes:
            module.training = training
        for norm, norm_group, pending in norms:
            norm.norm_group, norm._pending = norm_group, pending
