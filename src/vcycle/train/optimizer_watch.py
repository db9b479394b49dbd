"""What happened to an optimizer between two steps of a plan: did it step, or was it kept from it?

In: a torch optimizer, or a trainer's wrapper of one. Out: the number of its steps. Loops that step
a scheduler or an optimizer too often or too rarely are told from those whose gradient scaler
skipped a step.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer


class OptimizerWatch:
    """Counts the steps of one optimizer.

    Of these ``num_idle`` were at a rate of 0, as torch.distributed.checkpoint takes one to make an
    optimizer's state. ``has_plan_lr``: whether a PlanLR sets its rates.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.has_plan_lr = False
        self.num_steps = 0
        self.num_idle = 0
        optimizer.register_step_post_hook(self._count)

    def _count(self, optimizer: Optimizer, *_: Any) -> None:
        # Compiled code has no frames to look at, and would be cut in two here.
        if not torch.compiler.is_compiling() and _is_within_step(optimizer):
            return
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


def _is_within_step(optimizer: Optimizer) -> bool:
    """Whether the step whose hooks run was called by another of the same optimizer.

    By that of a subclass, which has the hooks too: torch wraps the ``step`` of each class.
    """
    wrapper = sys._getframe(2)
    caller = wrapper.f_back
    while caller is not None:
        if caller.f_code is wrapper.f_code:
            return any(each is optimizer for each in caller.f_locals.values())
        caller = caller.f_back
    return False


def step_was_skipped(optimizer: Optimizer) -> bool:
    """Whether the gradients explain why an optimizer did not step: not finite, or cleared since.

    A gradient scaler skips a step if they are not finite.
    """
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    held = [grad for grad in grads if grad is not None]
    if not any(bool(grad.any()) for grad in held):
        return True
    return not all(bool(grad.isfinite().all()) for grad in held)
