"""Build a model by name.

In: a name and the number of classes. Out: an ``nn.Module`` that takes clips of (B, 3, T, H, W) at
any shape and returns (B, num_classes) scores before softmax.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from vcycle.models.entries import Family, find_model
from vcycle.models.external import build_external
from vcycle.models.resnet3d import C2D, I3D, Slow
from vcycle.models.slowfast import SlowFast
from vcycle.models.tiny import TinyResNet3d
from vcycle.models.transformer import VideoTransformer
from vcycle.schedule.arguments import whole_number
from vcycle.schedule.messages import shortened

FAMILIES: Mapping[Family, Callable[..., nn.Module]] = {
    "SlowFast": SlowFast,
    "I3D": I3D,
    "Slow": Slow,
    "C2D": C2D,
    "TinyResNet3d": TinyResNet3d,
    "VideoTransformer": VideoTransformer,
}


def build_model(name: str, *, num_classes: int, **options: Any) -> nn.Module:
    """Build the model called ``name``, with fresh weights and ``nn.BatchNorm3d`` layers.

    ``name`` is one of ``vcycle.models.entries``, or an import path ``package.module:function`` of
    your own builder. ``options`` are arguments of the builder, such as ``dropout``; they win over
    those that the name stands for.

    Raises ValueError if the name is unknown (it names the nearest), ``num_classes`` is below 1, or
    the builder does not take an option or its size.
    """
    num_classes = whole_number("num_classes", num_classes)
    if ":" in name:
        return build_external(name, num_classes=num_classes, **options)
    entry = find_model(name)
    builder = FAMILIES[entry.family]
    try:
        inspect.signature(builder).bind(num_classes=num_classes, **options)
    except TypeError as error:
        raise ValueError(f"model {name}: {error}; it takes {_options_text(builder)}") from error
    try:
        return builder(num_classes=num_classes, **{**entry.arguments, **options})
    except TypeError as error:
        raise ValueError(
            f"model {name}: an option has the wrong type ({error}); check model.options"
        ) from error
    except RuntimeError as error:
        if "overflow" not in str(error):  # of a tensor's size
            raise
        raise ValueError(
            f"model {name}: an option is too large ({shortened(error)}); check model.options"
        ) from error


def _options_text(builder: Callable[..., nn.Module]) -> str:
    names = [name for name in inspect.signature(builder).parameters if name != "num_classes"]
    return ", ".join(names) or "no options"
