"""Running statistics that layers collect over a step, and that are applied once at its end.

In: a model with norm groups whose global batch is spread over processes or micro-batches. Out: the
running statistics of one plain layer over the global batch. What all layers collect is exchanged
and applied as one tensor, in as many operations for one layer as for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from vcycle.models.norm import SubBatchNorm3d, sub_batch_norms
from vcycle.models.wrapped import inner_optimizer


def defer_statistics(model: nn.Module, optimizer: Optimizer | None = None) -> None:
    """Make training collect statistics, which ``commit_statistics`` applies once a step.

    Needed if the global batch is spread over processes or micro-batches: the running statistics
    are then those of one plain layer over the global batch, whatever the number of parts. A layer
    that a forward pass uses several times moves once, by all of its uses, not once a use. With an
    ``optimizer`` they are committed after each of its steps; without, call ``commit_statistics``.
    """
    if optimizer is not None:
        inner_optimizer(optimizer).register_step_post_hook(lambda *_: commit_statistics(model))
    for layer in sub_batch_norms(model):
        if (mean := layer.running_mean) is not None:
            layer._pending = mean.new_zeros(2 * len(mean) + 2, dtype=torch.float64)


def discard_statistics(model: nn.Module) -> None:
    """Forget what was collected since the last commit: the step is not taken, or begins again."""
    for layer in sub_batch_norms(model):
        if layer._pending is not None:
            layer._pending.zero_()


def has_deferred_statistics(model: nn.Module) -> bool:
    """Whether every layer with running statistics collects them for ``commit_statistics``."""
    tracking = [layer for layer in sub_batch_norms(model) if layer.running_mean is not None]
    return all(layer._pending is not None for layer in tracking)


def num_commits(model: nn.Module) -> int | None:
    """How many times collected statistics were applied; None if no layer collects any."""
    counts = [each._num_commits for each in sub_batch_norms(model) if each._pending is not None]
    return sum(counts) if counts else None


@torch.no_grad()
def commit_statistics(model: nn.Module) -> None:
    """Move the running statistics by what all processes collected since the last commit.

    All processes call it together. Layers that were not run do not change, nor do those of one
    momentum if what they collected is not finite, as of a step that a gradient scaler skips: it
    would never leave running statistics again. The statistics of all layers are exchanged and
    applied as one tensor.
    """
    for layers in _alike(model):
        if collecting := [layer for layer in layers if layer._pending is not None]:
            _commit(collecting)
            collecting[0]._num_commits += 1


def _alike(model: nn.Module) -> Iterable[list[SubBatchNorm3d]]:
    """The layers with running statistics, those of one momentum, precision and device together."""
    alike: dict[tuple[object, ...], list[SubBatchNorm3d]] = {}
    for layer in sub_batch_norms(model):
        if (mean := layer.running_mean) is not None:
            alike.setdefault((layer.momentum, mean.dtype, mean.device), []).append(layer)
    return alike.values()


def _commit(layers: list[SubBatchNorm3d]) -> None:
    """``commit_statistics`` of layers of one momentum, precision and device, all at once."""
    buffers = [(x._pending, x.running_mean, x.running_var, x.num_batches_tracked) for x in layers]
    pending, means, variances, batches = (
        [x for x in column if x is not None] for column in zip(*buffers, strict=True)
    )
    sizes, dtype = [len(mean) for mean in means], means[0].dtype
    flat = torch.cat(pending)
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(flat)
    is_finite = flat.sum() * 0 == 0  # on the device, in fewer kernels than isfinite
    sums = flat[_places(tuple(sizes), flat.device)].where(is_finite, 0)
    sums[:3].div_(sums[2].clamp(min=1))
    mean, variance, seen, values = sums  # ``seen`` is 0 where nothing is to move
    variance.addcmul_(mean, mean, value=-1)  # from the mean square
    variance.addcdiv_(variance, values.sub_(1).clamp_(min=1))  # unbiased
    torch._foreach_add_(batches, [of_layer[0] for of_layer in torch.split(seen.long(), sizes)])
    weight: float | Tensor | None = layers[0].momentum
    if weight is None:  # the running statistics are then the mean over batches
        every = torch.cat([b.expand(n) for b, n in zip(batches, sizes, strict=True)])
        weight = 1 / every.clamp_(min=1)
    seen.mul_(weight)
    to_mean, to_variance, weights = (torch.split(row, sizes) for row in sums[:3].to(dtype))
    torch._foreach_lerp_([*means, *variances], [*to_mean, *to_variance], [*weights, *weights])
    torch._foreach_zero_(pending)


@lru_cache(maxsize=16)
def _places(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """(4, channels of all layers): where mean, mean square, groups and values of each lie."""
    rows: tuple[list[int], ...] = ([], [], [], [])
    start = 0
    for size in sizes:
        end = start + 2 * size
        rows[0].extend(range(start, start + size))
        rows[1].extend(range(start + size, end))
        rows[2].extend([end] * size)
        rows[3].extend([end + 1] * size)
        start = end + 2
    return torch.tensor(rows, device=device)
