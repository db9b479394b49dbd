"""What happened to an optimizer between two steps of a plan: did it step, or was it kept from it?

In: a torch optimizer, or a trainer's wrapper of one. Out: the number of its steps. Loops that step
a scheduler or an optimizer too often or too rarely are told from those whose gradient scaler
skipped a step.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

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
        self._depth = 0
        optimizer.register_step_pre_hook(self._begin)
        optimizer.register_step_post_hook(self._count)

    def _begin(self, *_: Any) -> None:
        self._depth += 1

    def _count(self, optimizer: Optimizer, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth:  # a subclass called the step of its parent, which has hooks of its own
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
    found = _watches[optimizer]
    found._depth = 0  # a step that raised an error has ended, too
    return found


def step_was_skipped(optimizer: Optimizer) -> bool:
    """Whether the gradients explain why an optimizer did not step: not finite, or cleared since.

    A gradient scaler skips a step if they are not finite.
    """
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    held = [grad for grad in grads if grad is not None]
    if not any(bool(grad.any()) for grad in held):
        return True
    return not all(bool(grad.isfinite().all()) for grad in held)
