"""The buffers that processes exchange: none but those that may differ.

In: a model as Fabric runs it. Out: the same model; DDP sends before a forward pass what has to be
sent, and what a forward pass did to it is sent before it is scored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vcycle.devices.fabric import Fabric
from vcycle.models import SubBatchNorm3d


def stop_broadcasting_buffers(model: nn.Module) -> None:
    """Let a DDP model, or one that holds it, exchange buffers only if the processes' may differ.

    The running statistics of ``SubBatchNorm3d`` are committed alike in all of them, and buffers
    that no checkpoint keeps are each process's own, and may be of other sizes.
    """
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            module.broadcast_buffers = has_other_buffers(module.module)
            own = {
                f"{name}.{each}" if name else each
                for name, layer in module.module.named_modules()
                for each in layer._non_persistent_buffers_set
            }
            module.parameters_to_ignore = {*module.parameters_to_ignore, *own}


def has_other_buffers(network: nn.Module) -> bool:
    """Whether a network has buffers that a checkpoint keeps beside those of ``SubBatchNorm3d``."""
    return any(True for _ in _other_buffers(network))


@torch.no_grad()
def share_buffers(network: nn.Module, fabric: Fabric) -> None:
    """Let all processes have those of the first, which its checkpoints keep, where they may differ.

    Buffers that no checkpoint keeps stay as they are.
    """
    if fabric.world_size == 1:
        return
    for buffer in _other_buffers(network):
        of_first = buffer.contiguous()
        torch.distributed.broadcast(of_first, src=0)
        buffer.copy_(of_first)


def _other_buffers(network: nn.Module) -> Iterator[Tensor]:
    for layer in network.modules():
        if not isinstance(layer, SubBatchNorm3d):
            for name, buffer in layer.named_buffers(recurse=False):
                if name not in layer._non_persistent_buffers_set:
                    yield buffer


def buffer_senders(model: nn.Module) -> list[DistributedDataParallel]:
    """The DDP models, of ``model`` and within it, whose forward passes exchange buffers."""
    return [
        module
        for module in model.modules()
        if isinstance(module, DistributedDataParallel) and module.broadcast_buffers
    ]


@contextmanager
def no_buffer_broadcasts(model: nn.Module) -> Iterator[None]:
    """Within this, forward passes of DDP models exchange no buffers, so that one may fail alone."""
    senders = buffer_senders(model)
    for module in senders:
        module.broadcast_buffers = False
    try:
        yield
    finally:
        for module in senders:
            module.broadcast_buffers = True
