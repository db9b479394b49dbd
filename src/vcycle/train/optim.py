"""The optimizer of a run and the rate of a step.

In: a model and its Optimizer configuration. Out: one torch optimizer for the whole run; no phase
rebuilds it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vcycle.config.run import Optimizer
from vcycle.models import parameter_groups


def make_optimizer(
    model: nn.Module, config: Optimizer, *, fused: bool | None = None
) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, or AdamW; the plan sets the rate before every step.

    ``fused`` updates all parameters in one kernel; None leaves that to torch.
    """
    groups = parameter_groups(model, weight_decay=config.weight_decay)
    if config.name == "sgd":
        return torch.optim.SGD(
            groups,
            lr=0.0,
            momentum=config.momentum,
            nesterov=config.momentum > 0,
            fused=fused,
        )
    return torch.optim.AdamW(groups, lr=0.0, betas=(config.momentum, 0.999), fused=fused)


def fuses(device: torch.device, precision: str) -> bool | None:
    """Whether a run's optimizer updates all parameters in one kernel; None if torch may choose.

    On a CPU the loop over parameters stays, whose rounding is that of recorded runs. A gradient
    scaler unscales before the update, for gradients to be clipped; a fused one would do it itself.
    """
    return True if device.type == "cuda" and precision != "16-mixed" else None


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a checkpoint's state; the kernels stay those of this device, not of the one before."""
    pairs = zip(state["param_groups"], optimizer.param_groups, strict=True)
    groups = [{**saved, "fused": group.get("fused")} for saved, group in pairs]
    optimizer.load_state_dict({**state, "param_groups": groups})


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give every parameter group the rate of this step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
