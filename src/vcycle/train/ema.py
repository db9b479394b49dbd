"""An exponential moving average of a network's weights: what is validated, exported and loaded.

In: a network after each step. Out: a second one with averaged weights. Buffers that a checkpoint
keeps are averaged too: the running statistics of norms then belong to weights of the same age (as
in timm). Others, such as a table of positions for the last clip, are each network's own.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

_NO_COPY = (RuntimeError, TypeError, pickle.PickleError)
"""What a copy of tensors that were computed, or of what is no module's own, raises."""


class WeightAverage(AveragedModel):
    """e <- d e + (1 - d) w after each step, with d = min(``decay``, (1 + n) / (10 + n)).

    n are the steps that were averaged before; the first step's weights are taken as they are. A
    short run forgets its first weights too. The average, ``module``, has the network's state dict;
    whole numbers and extra state in it are the network's. Raises ValueError if a layer cannot be
    copied.
    """

    def __init__(self, network: nn.Module, *, decay: float) -> None:
        try:
            super().__init__(network)
            self.requires_grad_(False)
        except torch.OutOfMemoryError:
            raise
        except _NO_COPY as error:
            not_copied = [each for each in network.named_modules() if not _copies(each[1])]
            if not not_copied:
                raise
            name, layer = not_copied[-1]
            raise ValueError(
                f"WeightAverage (ema_decay): layer {name!r} ({type(layer).__name__}) cannot be "
                f"copied; use torch.nn.utils.parametrizations.weight_norm, not "
                f"torch.nn.utils.weight_norm, and no scripted layers; or train without it, "
                f"--ema_decay 0"
            ) from error
        self.decay = decay

    @torch.no_grad()
    def update_parameters(self, network: nn.Module) -> None:
        """Take in the network's weights after a step, without waiting for the device."""
        before = int(self.n_averaged)  # on the CPU
        moved: list[tuple[Tensor, Tensor]] = []
        copied: list[tuple[Tensor, Tensor]] = []
        for each in zip(_values(self.module), _values(network), strict=True):
            is_whole = not (each[0].is_floating_point() or each[0].is_complex())
            (copied if is_whole or not before else moved).append(each)
        weight = 1 - min(self.decay, (1 + before) / (10 + before))
        if any(hasattr(ours, "device_mesh") for ours, _ in (*moved, *copied)):
            # Tensors of fully_shard and whole ones cannot be together in one operation.
            for ours, new in moved:
                ours.lerp_(new, weight)
            for ours, new in copied:
                ours.copy_(new)
        else:
            if moved:
                torch._foreach_lerp_([ours for ours, _ in moved], [new for _, new in moved], weight)
            if copied:
                torch._foreach_copy_([ours for ours, _ in copied], [new for _, new in copied])
        for own, other in zip(
            _with_extra_state(self.module), _with_extra_state(network), strict=True
        ):
            own.set_extra_state(copy.deepcopy(other.get_extra_state()))
        self.n_averaged += 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: the average's state dict, and of how many steps it is."""
        return {"average": self.module.state_dict(), "num_averaged": int(self.n_averaged)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.module.load_state_dict(state["average"])
        self.n_averaged.fill_(state["num_averaged"])


def _copies(layer: nn.Module) -> bool:
    try:
        copy.deepcopy(layer).requires_grad_(False)
    except _NO_COPY:
        return False
    return True


def _values(network: nn.Module) -> Iterator[Tensor]:
    """The parameters, and the buffers that a checkpoint keeps, each once.

    A state dict may also have tensors that are extra state, or were computed for it.
    """
    yield from network.parameters()
    buffers = (
        buffer
        for layer in network.modules()
        for name, buffer in layer._buffers.items()
        if buffer is not None and name not in layer._non_persistent_buffers_set
    )
    yield from {id(buffer): buffer for buffer in buffers}.values()


def _with_extra_state(network: nn.Module) -> Iterator[nn.Module]:
    for layer in network.modules():
        if type(layer).set_extra_state is not nn.Module.set_extra_state:
            yield layer
