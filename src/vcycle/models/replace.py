"""Replace layers of a model by layers of ours that hold the same parameters.

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
    """Replace every layer whose class is a key of ``classes`` by one of the class that it names.

    Subclasses of the keys are left alone. Parameters, buffers and hooks are the same objects as
    before, so an optimizer of the plain model stays valid; a layer used in two places stays one
    layer. Returns ``model``; only if ``model`` itself is such a layer is it a new module.
    """
    replaced: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and type(child) in classes:
                if child not in replaced:
                    replaced[child] = _as(classes[type(child)], child)
                parent._modules[name] = replaced[child]
    return _as(classes[type(model)], model) if type(model) in classes else model


def _as(kind: type[nn.Module], plain: nn.Module) -> nn.Module:
    layer = kind.__new__(kind)
    layer.__dict__.update(plain.__dict__)
    return layer


def traced_as_leaf(layer: nn.Module, clips: fx.Proxy) -> Any:
    """Trace ``layer`` as one node of a ``torch.fx`` graph, as torch's own layers are."""
    tracer: Any = clips.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), (clips,), {})
