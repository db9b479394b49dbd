"""The optimizer of a run, and the clipping of its gradients.

In: a model and its Optimizer configuration. Out: one torch optimizer for the whole run; no phase
rebuilds it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vcycle.config.run import Optimizer
from vcycle.devices.fabric import Fabric
from vcycle.models import parameter_groups
from vcycle.train.large_batch import Lamb, Lars, Muon


def make_optimizer(
    model: nn.Module, config: Optimizer, *, fused: bool | None = None
) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, or another; the plan sets the rate before every step.

    ``fused`` updates all parameters in one kernel, in optimizers that have it; None leaves that to
    torch.
    """
    groups = parameter_groups(
        model, weight_decay=config.weight_decay, layer_decay=config.layer_decay
    )
    if config.name == "lars":
        return Lars(groups, lr=0.0, momentum=config.momentum)
    if config.name == "lamb":
        return Lamb(groups, lr=0.0, betas=(config.momentum, 0.999))
    if config.name == "muon":
        return Muon(groups, lr=0.0, betas=(config.momentum, 0.999))
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
    """Load a checkpoint's state; the kernels stay those of this device, not of the one before.

    Raises ValueError if a tensor in it is not of its parameter's shape.
    """
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for number, kept in state["state"].items():
        for name, value in kept.items():
            shape = () if name == "step" else params[number].shape
            if value is not None and value.shape != shape:
                raise ValueError(f"{name} {number} of its optimizer is no tensor of {shape}")
    pairs = zip(state["param_groups"], optimizer.param_groups, strict=True)
    groups = [{**saved, "fused": group.get("fused")} for saved, group in pairs]
    optimizer.load_state_dict({**state, "param_groups": groups})


def clip_gradients(
    fabric: Fabric, model: nn.Module, optimizer: torch.optim.Optimizer, *, longest: float
) -> Tensor | None:
    """Scale gradients to a norm of at most ``longest`` over all parameters; 0 does nothing.

    They are those of the whole batch: call it after its last backward pass. A gradient scaler's
    factor is taken out first. Returns the norm before, a scalar on the device, the same in all
    processes.
    """
    if not longest:
        return None
    # A gradient that is not finite is left to the checks of the loss.
    return fabric.clip_gradients(model, optimizer, max_norm=longest, error_if_nonfinite=False)
