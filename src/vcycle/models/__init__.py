"""Video models by name.

In: a name and the number of classes. Out: an `nn.Module` that takes clips of (B, 3, T, H, W) at
any shape and returns (B, num_classes) scores before softmax. Models know nothing of plans.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from torch import nn

from vcycle.models.norm import SubBatchNorm3d, convert, set_group_size
from vcycle.models.tiny import resnet3d_tiny

__all__ = ["MODELS", "SubBatchNorm3d", "build_model", "convert", "set_group_size"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet3d_tiny": resnet3d_tiny,
}


def build_model(name: str, *, num_classes: int, **options: Any) -> nn.Module:
    """Build the model called `name`, with fresh weights and `nn.BatchNorm3d` layers.

    `options` are the builder's own arguments, such as `dropout`. Raises ValueError for a name that
    is not in `MODELS` (naming the nearest), for fewer than one class and for an unknown option.
    """
    if name not in MODELS:
        nearest = get_close_matches(name, MODELS, n=1, cutoff=0.0)[0]
        raise ValueError(f"model {name!r} is unknown; did you mean {nearest!r}?")
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}; give at least 1")
    builder = MODELS[name]
    try:
        inspect.signature(builder).bind(num_classes=num_classes, **options)
    except TypeError as error:
        raise ValueError(f"model {name!r}: {error}; it takes {_options_text(builder)}") from error
    return builder(num_classes=num_classes, **options)


def _options_text(builder: Callable[..., nn.Module]) -> str:
    names = [name for name in inspect.signature(builder).parameters if name != "num_classes"]
    return ", ".join(names) or "no options"
