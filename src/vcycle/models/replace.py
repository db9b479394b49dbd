"""Make layers of a model layers of ours that hold the same parameters.

In: a model, and which class takes the place of which. Out: the model, changed in place. Where our
layers depend on the clips that they are given, ``torch.fx`` is to trace them as torch's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx, nn


def replace_layers(
    model: nn.Module, classes: Mapping[type[nn.Module], type[nn.Module]]
) -> nn.Module:
    """Make every layer whose class is a key of ``classes`` one of the class that it names.

    Subclasses of the keys are left alone. A layer stays the same object, wherever else the model
    holds it, as do its parameters, buffers and hooks: an optimizer of the plain model stays valid.
    Returns ``model``.
    """
    for layer in model.modules():
        if type(layer) in classes:
            layer.__class__ = classes[type(layer)]
    return model


def traced_as_leaf(layer: nn.Module, clips: fx.Proxy) -> Any:
    """Trace ``layer`` as one node of a ``torch.fx`` graph, as torch's own layers are."""
    tracer: Any = clips.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), (clips,), {})
