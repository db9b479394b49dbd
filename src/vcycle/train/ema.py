"""An exponential moving average of a network's weights: what is validated, exported and loaded.

In: a network after each step. Out: a second one with averaged weights. Buffers are averaged too:
the running statistics of norms then belong to weights of the same age (as in timm).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class WeightAverage(AveragedModel):
    """e <- d e + (1 - d) w after each step, with d = min(``decay``, (1 + n) / (10 + n)).

    n are the steps that were averaged before; the first step's weights are taken as they are. A
    short run forgets its first weights too. The average, ``module``, has the network's state dict;
    whole numbers in it are the network's.
    """

    def __init__(self, network: nn.Module, *, decay: float) -> None:
        super().__init__(network, multi_avg_fn=self._move, use_buffers=True)
        self.decay = decay
        self.requires_grad_(False)

    def _move(self, average: Any, current: Any, _: Tensor | int) -> None:
        before = int(self.n_averaged)  # on the CPU: reading it waits for nothing
        weight = 1 - min(self.decay, (1 + before) / (10 + before))
        if average[0].is_floating_point():
            torch._foreach_lerp_(average, current, weight)
        else:
            torch._foreach_copy_(average, current)

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take in the network's weights after a step."""
        self.update_parameters(network)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the average's state dict, and of how many steps it is."""
        return {"average": self.module.state_dict(), "num_averaged": int(self.n_averaged)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.module.load_state_dict(state["average"])
        self.n_averaged.fill_(state["num_averaged"])
