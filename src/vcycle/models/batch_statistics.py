"""Precise batch norm: running statistics measured under the final weights.

In: a trained model and batches at the target shape. Out: the same model with the statistics of
those batches in its norm layers. Running averages still contain activations of earlier steps on
coarse shapes; the paper's fine-tuning phase has the same purpose (section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vcycle.models.buffers import as_it_was
from vcycle.models.norm import SubBatchNorm3d, ranks_per_group


@torch.no_grad()
def precise_bn(
    model: nn.Module, batches: Iterable[Tensor], *, num_batches: int | None = None
) -> int:
    """Set the running statistics of every batch norm of ``model`` to those of ``batches``.

    Of every one that ``model.train()`` puts into training mode: others stay as they are.

    Each batch, (B, 3, T, H, W) on the model's device, is normalised by its own statistics, per norm
    group if one is set; dropout is off. The mean is the mean over all clips of all processes. The
    variance is the variance within groups plus the variance between their means, unbiased: in how
    many parts processes or micro-batches take the clips changes nothing. A layer used
    several times in one forward pass averages its uses, as running statistics do. At most
    ``num_batches`` are read. Nothing else in the model changes. Pass the model itself, not the
    result of ``torch.compile`` with ``fullgraph``.

    Returns the number of layers that were set. If it is 0, ``batches`` is not read.
    Raises ValueError if there is no batch, the norm groups do not divide a batch, or activations
    are not finite, TypeError if a batch is no tensor; the statistics are then unchanged.
    """
    with as_it_was(model):
        model.train()
        layers = [layer for layer in running_norms(model) if layer.training]
        if not layers:
            return 0
        model.eval()
        with _averaging(layers):
            measured = _measure(model, layers, islice(batches, num_batches))
    for layer, (mean, var) in zip(layers, measured, strict=True):
        assert layer.running_mean is not None
        assert layer.running_var is not None
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(var)
    return len(layers)


def running_norms(model: nn.Module) -> list[_BatchNorm]:
    """The batch norms whose running statistics ``precise_bn`` sets."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


@contextmanager
def _averaging(layers: list[_BatchNorm]) -> Iterator[None]:
    """Within this, running statistics are the averages of all that was seen."""
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.train()
        layer.momentum = None
        if isinstance(layer, SubBatchNorm3d):
            layer._pending = None
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def _measure(
    model: nn.Module, layers: list[_BatchNorm], batches: Iterable[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    sizes = [layer.num_features for layer in layers]
    of_layers = torch.tensor(sizes)
    means = torch.cat([layer.running_mean for layer in layers if layer.running_mean is not None])
    # Sums over clips: the means of all layers, their mean squares, and the number of clips; then
    # the values per channel of each layer.
    sums = torch.zeros(2 * len(means) + 1 + len(layers), dtype=torch.float64, device=means.device)
    with _values_seen(layers) as seen:
        for clips in batches:
            for layer in layers:
                assert layer.num_batches_tracked is not None
                layer.num_batches_tracked.zero_()  # running statistics then are of this batch
                seen[layer].clear()
            _run(model, clips)
            # Of this process, and of all those that a group spans: means over a layer's uses.
            values, shared = torch.tensor([_means(each) for each in seen.values()]).T
            of_channel = shared.repeat_interleave(of_layers).to(sums)
            mean = torch.cat([m.running_mean for m in layers if m.running_mean is not None])
            var = torch.cat([m.running_var for m in layers if m.running_var is not None])
            biased = var.double() * (1 - 1 / of_channel.clamp(min=2))
            biased = torch.where(of_channel > 0, biased, var)  # of one that was not run
            square = biased + mean.double().square()
            moments = len(clips) * torch.cat([mean.double(), square, mean.new_ones(1).double()])
            sums += torch.cat([moments, values.to(sums)])
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(sums)
    of_clips, values = sums[: -len(layers)], sums[-len(layers) :]
    if of_clips[-1] == 0:
        raise ValueError("precise_bn: no batch to measure; pass at least one")
    if not bool(sums.isfinite().all()):
        raise ValueError(
            "precise_bn: the input of a norm layer is not finite; check the batches and the weights"
        )
    mean, square = (of_clips[:-1] / of_clips[-1]).chunk(2)
    unbiased = values / (values - 1).clamp(min=1)
    unbiased = torch.where(values > 0, unbiased, 1.0)
    var = (square - mean.square()) * unbiased.repeat_interleave(of_layers.to(values.device))
    return list(zip(torch.split(mean, sizes), torch.split(var, sizes), strict=True))


@contextmanager
def _values_seen(
    layers: list[_BatchNorm],
) -> Iterator[dict[nn.Module, list[tuple[int, int]]]]:
    """Of each use of a layer: values per channel here, and in all processes of a group."""
    seen: dict[nn.Module, list[tuple[int, int]]] = {layer: [] for layer in layers}
    note = partial(_note_values, seen)
    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _note_values(
    seen: dict[nn.Module, list[tuple[int, int]]],
    layer: nn.Module,
    inputs: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    if not layer.training:  # as one that is frozen stays
        return
    batch, ranks = next(iter((*inputs, *named.values()))), 1
    if isinstance(layer, SubBatchNorm3d):
        ranks = ranks_per_group(layer.norm_group or len(batch), len(batch))
    elif isinstance(layer, nn.SyncBatchNorm) and dist.is_available() and dist.is_initialized():
        ranks = dist.get_world_size()
    own = batch.numel() // batch.shape[1]
    seen[layer].append((own, ranks * own))


def _means(uses: list[tuple[int, int]]) -> list[float]:
    """Of each column; zeros of no row."""
    return [sum(column) / len(uses) for column in zip(*uses, strict=True)] or [0.0, 0.0]


def _run(model: nn.Module, clips: object) -> None:
    if not isinstance(clips, Tensor):
        raise TypeError(
            f"precise_bn: a batch is {type(clips).__name__}; give what the model takes, such as "
            f"(vcycle.normalize(batch.clips) for batch in loader)"
        )
    try:
        model(clips)
    except ValueError as error:
        if not str(error).startswith("norm_group"):
            raise
        raise ValueError(
            f"precise_bn: {error}, leave a last, smaller batch out (drop_last), or call "
            f"vcycle.set_norm_group(model, None) for whole batches: the group is still that of the "
            f"last training step"
        ) from None
