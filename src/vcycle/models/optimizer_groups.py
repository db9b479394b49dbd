"""Group parameters for an optimizer by whether they decay, as the authors' code does.

In: a model. Out: two groups for a torch optimizer: weights and biases of norm layers, without
decay, and all others, biases included, with it (paper: 1e-4; the official code takes 1e-6 for
Something-Something). A model may name more that do not decay, as transformers do.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vcycle.models.layer_decay import with_layer_decay
from vcycle.models.wrapped import plain_name, unwrapped


def parameter_groups(
    model: nn.Module, *, weight_decay: float, layer_decay: float = 1.0
) -> list[dict[str, Any]]:
    """Two groups: parameters with ``weight_decay``, then those without.

    Each is in the order of ``model.parameters()``. Norm layers are batch norms and modules with
    'norm' in their class's name. ``convert_batch_norm`` does not change the groups, so optimizer
    state loads into a plain and into a converted model. Frozen parameters are left out. A model
    with a method ``no_weight_decay``, which returns names of parameters as in timm, spares those
    too. With a ``layer_decay`` below 1 both are split by layers (``vcycle.models.layer_decay``).
    A model may be in DDP, FSDP or ``torch.compile``.

    Raises ValueError if ``weight_decay`` is negative, no parameter is trained, or ``layer_decay``
    is not for this model.
    """
    model = unwrapped(model)
    if weight_decay < 0:
        raise ValueError(f"weight_decay {weight_decay}: give 0 or more, such as 1e-4")
    spared = {
        parameter
        for module in model.modules()
        if isinstance(module, _BatchNorm) or "norm" in type(module).__name__.lower()
        for parameter in module.parameters(recurse=False)
    }
    no_weight_decay = getattr(model, "no_weight_decay", None)
    # A model may list its parameters, and parts of it be wrapped: both by their plain names.
    named = set(map(plain_name, no_weight_decay() if callable(no_weight_decay) else ()))
    spared |= {p for name, p in model.named_parameters() if plain_name(name) in named}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("model: no parameters to train; unfreeze some of its layers")
    groups = [
        {"params": [p for p in trained if p not in spared], "weight_decay": weight_decay},
        {"params": [p for p in trained if p in spared], "weight_decay": 0.0},
    ]
    if layer_decay == 1:
        return groups
    return with_layer_decay(groups, model, layer_decay=layer_decay)
