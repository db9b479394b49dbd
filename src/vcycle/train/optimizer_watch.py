"""What happened to an optimizer between two steps of a plan: did it step, or was it kept from it?

In: a torch optimizer, or a trainer's wrapper of one. Out: the number of its steps, and the rates
that its parameter groups began with. Loops that step a scheduler or an optimizer too often or too
rarely are told from those whose gradient scaler skipped a step.
"""

from __future__ import annotations

import math
import warnings
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

_SAME_RATE = 1e-6  # 0.3 / 3 is 0.1, and so is float32's


class OptimizerWatch:
    """Counts the steps of one optimizer; ``at_last_batch`` is the count when a batch last came.

    Of these ``num_idle`` were at a rate of 0, as torch.distributed.checkpoint takes one to make an
    optimizer's state. ``first_commits`` and ``first_updates`` are how often a model's collected
    statistics had been applied, and the optimizer had stepped, when a batch first came.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.num_steps = 0
        self.num_idle = 0
        self.updates_at_last_batch = 0
        self.at_last_batch: int | None = None
        self.first_commits: int | None = None
        self.first_updates = 0
        self.has_commits = False
        optimizer.register_step_post_hook(self._count)

    def _count(self, optimizer: Optimizer, *_: Any) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        self.num_steps += 1
        self.num_idle += not any(isinstance(rate, Tensor) or rate for rate in rates)

    @property
    def num_updates(self) -> int:
        """Steps that may have changed something."""
        return self.num_steps - self.num_idle


_watches: WeakKeyDictionary[Optimizer, OptimizerWatch] = WeakKeyDictionary()


def watch(optimizer: Optimizer) -> OptimizerWatch:
    """The one watch of an optimizer; it counts from the first call."""
    if optimizer not in _watches:
        _watches[optimizer] = OptimizerWatch(optimizer)
    return _watches[optimizer]


def inner_optimizer(optimizer: Any) -> Optimizer:
    """The torch optimizer itself, which Lightning and Accelerate wrap."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if not isinstance(inner, Optimizer):
        raise TypeError(f"optimizer {type(inner).__name__}: give a torch.optim.Optimizer")
    return inner


def step_was_skipped(optimizer: Optimizer) -> bool:
    """Whether the gradients explain why an optimizer did not step: not finite, or cleared since.

    A gradient scaler skips a step if they are not finite.
    """
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    held = [grad for grad in grads if grad is not None]
    if not any(bool(grad.any()) for grad in held):
        return True
    return not all(bool(grad.isfinite().all()) for grad in held)


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
            f"baseline's {base_rate:g}; give both the same",
            stacklevel=3,
        )


def _initial_rates(optimizer: Optimizer) -> list[float]:
    """What each parameter group began at, which it keeps as torch's schedulers do."""
    for group in optimizer.param_groups:
        rate = group["lr"]
        group.setdefault("initial_lr", rate.clone() if isinstance(rate, Tensor) else rate)
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
