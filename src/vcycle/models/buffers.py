"""Leave a model's buffers as they were.

In: a model that is about to run on clips that do not count. Out: the same tensors, with the same
values, in the same places.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


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
