"""The module within DDP's or torch.compile's wrapper of it, by whose own names it is known.

In: any module. Out: the one that was wrapped, or itself.
"""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def unwrapped(model: nn.Module) -> nn.Module:
    """The module whose methods and names of parameters are those that its author gave."""
    while True:
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model
