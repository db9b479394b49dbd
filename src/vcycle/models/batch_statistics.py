"""Precise batch normalisation: running statistics measured afresh, not averaged while training.

In: a trained model and batches at the target shape. Out: the model, its norm layers holding the
statistics of those batches under its final weights. Multigrid needs it most: the running averages
still remember the coarse shapes of earlier steps (cf. the paper's fine-tuning phase, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vcycle.models.norm import SubBatchNorm3d


@torch.no_grad()
def precise_bn(
    model: nn.Module, batches: Iterable[Tensor], *, num_batches: int | None = None
) -> int:
    """Set the running statistics of every batch norm of `model` to those of `batches`.

    Each batch, (B, 3, T, H, W) on the model's device, is normalised by its own statistics, by norm
    groups where they are set; dropout is off. The mean is the mean of the batches' means, the
    variance that within plus between the batches, clips weighing the same, over all processes of
    `torch.distributed`; within a batch, a layer that is used more than once takes the mean of its
    uses, as running statistics do. At most `num_batches` are taken. Returns the number of layers
    that were set; without any (a layer norm model) `batches` is not touched. All else stays as it
    was. Give the model itself, not one that `torch.compile` made with `fullgraph`.

    Raises ValueError if there is no batch, the norm groups do not divide one, or values are not
    finite; the statistics are then as before.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers:
        return 0
    with _as_it_was(model, layers):
        model.eval()
        for layer in layers:
            layer.train()
            layer.momentum = None  # the running statistics are then the mean of what was seen
            if isinstance(layer, SubBatchNorm3d):
                layer._pending = None
        measured = _measure(model, layers, islice(batches, num_batches))
    for layer, (mean, var) in zip(layers, measured, strict=True):
        assert layer.running_mean is not None
        assert layer.running_var is not None
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(var)
    return len(layers)


@contextmanager
def _as_it_was(model: nn.Module, layers: list[_BatchNorm]) -> Iterator[None]:
    settings = [(layer.momentum, getattr(layer, "_pending", None)) for layer in layers]
    before = [[buffer.clone() for buffer in layer.buffers(recurse=False)] for layer in layers]
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for layer, (momentum, pending), buffers in zip(layers, settings, before, strict=True):
            layer.momentum = momentum
            if isinstance(layer, SubBatchNorm3d):
                layer._pending = pending
            for buffer, value in zip(layer.buffers(recurse=False), buffers, strict=True):
                buffer.copy_(value)
        for module, training in modes:
            module.training = training


def _measure(
    model: nn.Module, layers: list[_BatchNorm], batches: Iterable[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    sizes = [layer.num_features for layer in layers]
    means = torch.cat([layer.running_mean for layer in layers if layer.running_mean is not None])
    # Sums over clips, of all layers one after the other: mean, mean square, and 1.
    sums = torch.zeros(2 * len(means) + 1, dtype=torch.float64, device=means.device)
    for clips in batches:
        for layer in layers:
            assert layer.num_batches_tracked is not None
            layer.num_batches_tracked.zero_()  # what was seen is then this batch alone
        model(clips)
        mean = torch.cat([m.running_mean for m in layers if m.running_mean is not None]).double()
        var = torch.cat([m.running_var for m in layers if m.running_var is not None]).double()
        sums += len(clips) * torch.cat([mean, var + mean.square(), mean.new_ones(1)])
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(sums)
    if sums[-1] == 0:
        raise ValueError("precise_bn: no batch to measure; give at least one")
    if not bool(sums.isfinite().all()):
        raise ValueError(
            "precise_bn: a layer's input is not finite; look at the batches and weights"
        )
    mean, square = (sums[:-1] / sums[-1]).chunk(2)
    var = square - mean.square()
    return list(zip(torch.split(mean, sizes), torch.split(var, sizes), strict=True))
