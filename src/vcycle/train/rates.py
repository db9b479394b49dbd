"""The rates of an optimizer's parameter groups, by the rate of a step.

In: a torch optimizer and a step's rate. Out: every group at its own multiple of it. That is the
``lr_scale`` of groups of ours, and for other loops' what they began with.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor
from torch.optim import Optimizer

_SAME_RATE = 1e-6  # 0.3 / 3 is 0.1, and so is float32's


def set_learning_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Give every parameter group the rate of this step, times its ``lr_scale`` if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("lr_scale", 1)


def rate_factors(optimizer: Optimizer, *, base_rate: float) -> list[float]:
    """Each parameter group's rate as a multiple of the plan's, from the rates it began with.

    ``base_rate`` is the baseline's: a group that began there has factor 1, and one at twice that
    rate 2. If no group did, the largest rate counts as the baseline's; rates of 0 throughout count
    as equal. timm's ``lr_scale`` multiplies a group's factor.
    """
    rates = _initial_rates(optimizer)
    unit = _unit(rates, base_rate)
    factors = [rate / unit for rate in rates] if unit else [1.0] * len(rates)
    scales = [float(group.get("lr_scale", 1)) for group in optimizer.param_groups]
    return [factor * scale for factor, scale in zip(factors, scales, strict=True)]


def warn_of_rate(optimizer: Optimizer, *, base_rate: float) -> None:
    """Warn the caller's caller if no group began at the baseline's rate, and some at another."""
    unit = _unit(_initial_rates(optimizer), base_rate)
    if unit and not _is_same(unit, base_rate):
        warnings.warn(
            f"optimizer: it began at a rate of {unit:g}, which is not used: the plan's follow its "
            f"baseline's {base_rate:g}; give both the same, or an optimizer beside another "
            f"lr={base_rate:g} and in its groups lr_scale={unit / base_rate:g}",
            stacklevel=3,
        )


def _initial_rates(optimizer: Optimizer) -> list[float]:
    """What each parameter group began at, which it keeps as torch's schedulers do.

    torch gives one tensor to all groups; each gets its own, and the caller's stays as it is.
    """
    shared = [id(optimizer.defaults.get("lr"))]
    for place, group in enumerate(optimizer.param_groups):
        rate = group["lr"]
        if rate is None:
            raise ValueError(
                f"optimizer: parameter group {place} has no rate; give {type(optimizer).__name__} "
                f"the baseline's lr, which the plan scales (Adafactor: and relative_step=False)"
            )
        if isinstance(rate, Tensor):
            if id(rate) in shared:
                rate = group["lr"] = rate.clone()
            shared.append(id(rate))
            rate = rate.clone()
        group.setdefault("initial_lr", rate)
    return [float(group["initial_lr"]) for group in optimizer.param_groups]


def _unit(rates: list[float], base_rate: float) -> float:
    """The rate that counts as the baseline's."""
    return next((rate for rate in rates if _is_same(rate, base_rate)), max(rates))


def _is_same(rate: float, base_rate: float) -> bool:
    return math.isclose(rate, base_rate, rel_tol=_SAME_RATE)


def set_rates(optimizer: Optimizer, learning_rate: float, factors: list[float]) -> None:
    """Give every parameter group its multiple of a rate; a rate that is a tensor stays one."""
    for group, factor in zip(optimizer.param_groups, factors, strict=True):
        if isinstance(group["lr"], Tensor):
            with torch.no_grad():
                group["lr"].fill_(learning_rate * factor)
        else:
            group["lr"] = learning_rate * factor
