"""Which parameters decay: optimizer groups as in the authors' code.

In: a model. Out: two groups for a torch optimizer: norm layers' weights and offsets, which do not
decay, and everything else, biases included, which does: by 1e-4 in the paper (section 4), by 1e-6
on Something-Something V2 in the official configuration.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """[what decays by `weight_decay`, what does not], each in the order of `model.parameters()`.

    The groups depend on the model alone, not on the kind of norm nor on whether it was converted:
    optimizer state loads across both. Norm layers are batch norms and those whose class is called
    a norm. Frozen parameters are left out. Raises ValueError for a negative decay and a model
    without parameters.
    """
    if weight_decay < 0:
        raise ValueError(f"weight_decay is {weight_decay}; give 0 or more, such as 1e-4")
    of_norms = {
        parameter
        for module in model.modules()
        if isinstance(module, _BatchNorm) or "norm" in type(module).__name__.lower()
        for parameter in module.parameters(recurse=False)
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("model has no parameters to train; unfreeze some of its layers")
    return [
        {"params": [p for p in trained if p not in of_norms], "weight_decay": weight_decay},
        {"params": [p for p in trained if p in of_norms], "weight_decay": 0.0},
    ]
