"""The buffers that processes exchange: none but those that may differ.

In: a model as Fabric runs it. Out: the same model; DDP sends before a forward pass what has to be
sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vcycle.models import SubBatchNorm3d


def stop_broadcasting_buffers(model: nn.Module) -> None:
    """Let a DDP model, or one that holds it, exchange buffers only if the processes' may differ.

    The running statistics of ``SubBatchNorm3d`` are committed alike in all of them.
    """
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            module.broadcast_buffers = has_other_buffers(module.module)


def has_other_buffers(network: nn.Module) -> bool:
    """Whether a network has buffers beside those of ``SubBatchNorm3d``."""
    return any(
        True
        for layer in network.modules()
        if not isinstance(layer, SubBatchNorm3d)
        for _ in layer.buffers(recurse=False)
    )


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
