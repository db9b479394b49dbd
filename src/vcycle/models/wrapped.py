"""The module within a wrapper of DDP, FSDP, torch.compile and others, by its own names.

In: any module. Out: the one that was wrapped, or itself; and names as its author gave them. So of
an optimizer.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

_WRAPPERS = (
    *("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"),
    *("AveragedModel", "_FabricModule"),
)
"""Classes of torch and Lightning Fabric that hold a model as ``module``."""
_PARTS = ("_orig_mod.", "_fsdp_wrapped_module.")
"""What torch puts into the names of parameters of wrapped parts."""
_WHOLE = "module."
"""What it puts before those of a wrapped model."""


def unwrapped(model: nn.Module) -> nn.Module:
    """The module whose methods and names of parameters are those that its author gave."""
    while True:
        kinds = {kind.__name__ for kind in type(model).__mro__}
        inner = model.module if kinds & set(_WRAPPERS) else getattr(model, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def inner_optimizer(optimizer: Any) -> Optimizer:
    """The torch optimizer itself, which Lightning, Accelerate and SAM wrap.

    Raises TypeError if there is none.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    inner = getattr(inner, "base_optimizer", inner)
    if not isinstance(inner, Optimizer):
        raise TypeError(f"optimizer {type(inner).__name__}: give a torch.optim.Optimizer")
    return inner


def plain_name(name: str) -> str:
    """Of a parameter, without what wrappers of parts of the model put into it."""
    for part in _PARTS:
        name = name.replace(part, "")
    return name


def without_wrappers(key: str) -> str:
    """Of a state dict, without what wrappers of the model and of its parts put into it."""
    key = plain_name(key)
    while key.startswith(_WHOLE):
        key = key.removeprefix(_WHOLE)
    return key
