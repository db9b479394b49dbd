"""The optimizer of a run and the rate of a step.

In: a model and its Optimizer configuration. Out: one torch optimizer for the whole run; no phase
rebuilds it. Which parameters decay does not depend on the kind of norm layer, so that the
optimizer's state always fits.
"""

from __future__ import annotations

import torch
from torch import nn

from vcycle.train.config import Optimizer

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, object]]:
    """Two groups: everything else decays, weights and biases of norm layers do not."""
    norms = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, _NORMS)
        for parameter in module.parameters(recurse=False)
    }
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {
            "params": [p for p in parameters if id(p) not in norms],
            "weight_decay": weight_decay,
        },
        {"params": [p for p in parameters if id(p) in norms], "weight_decay": 0.0},
    ]


def make_optimizer(model: nn.Module, config: Optimizer) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, or AdamW; the plan sets the rate before every step."""
    groups = parameter_groups(model, weight_decay=config.weight_decay)
    if config.name == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=config.momentum, nesterov=True)
    return torch.optim.AdamW(groups, lr=0.0, betas=(config.momentum, 0.999))


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every parameter group the rate of this step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
