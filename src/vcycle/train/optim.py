"""The optimizer of a run and the rate of a step.

In: a model and its Optimizer configuration. Out: one torch optimizer for the whole run; no phase
rebuilds it.
"""

from __future__ import annotations

import torch
from torch import nn

from vcycle.config.run import Optimizer
from vcycle.models import parameter_groups


def make_optimizer(model: nn.Module, config: Optimizer) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, or AdamW; the plan sets the rate before every step."""
    groups = parameter_groups(model, weight_decay=config.weight_decay)
    if config.name == "sgd":
        return torch.optim.SGD(
            groups, lr=0.0, momentum=config.momentum, nesterov=config.momentum > 0
        )
    return torch.optim.AdamW(groups, lr=0.0, betas=(config.momentum, 0.999))


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every parameter group the rate of this step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
