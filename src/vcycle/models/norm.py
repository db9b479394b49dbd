"""Batch normalisation over norm groups: the paper's sub-mini-batches (section 3.2).

In: a model with `nn.BatchNorm3d` layers, and per step the number of clips of a norm group. Out: the
same model, parameters and state dict, whose training statistics come from that many clips at a
time, so that the noise of the statistics does not change with the size of the mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.nn import functional as F

from vcycle.models.norm_cpu import pooled
from vcycle.models.norm_groups import normalise_across_ranks, normalise_groups


class SubBatchNorm3d(nn.BatchNorm3d):
    """`nn.BatchNorm3d` whose training statistics are those of groups of contiguous clips.

    In: (B, C, T, H, W) floating point; out: the same shape, dtype and memory format. In training,
    clips i * g to (i + 1) * g - 1 of the global batch are normalised by their own mean and
    variance, g being `norm_group`; None means all clips of this process. A group may span
    processes (`torch.distributed`, equally many clips in each): they exchange statistics.

    Parameters, buffers and the state dict are those of `nn.BatchNorm3d`. The running statistics
    are what one plain layer over the whole batch would hold: the mean of the groups' means, and
    the variance within plus between the groups. See `defer_statistics` for a global batch that is
    spread over processes or micro-batches.

    Raises ValueError in training if the groups do not divide the batch, or have one value per
    channel. Differentiable once, by the backward pass (not by `torch.func`). To `torch.fx` it is a
    leaf, and an empty batch passes, as with the plain layer.
    """

    norm_group: int | None = None
    _pending: Tensor | None = None
    """With deferred statistics, sums over groups: mean (C), mean square (C), groups, values."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor
        traced: object = input
        if isinstance(traced, fx.Proxy):
            output = _leaf_call(self, traced)
            return output
        if not self.training:
            return super().forward(input)
        num_clips = input.shape[0]
        norm_group = self.norm_group or num_clips
        is_empty = input.numel() == 0
        if (norm_group == num_clips or is_empty) and self._pending is None:
            return super().forward(input)
        self._check_input_dim(input)
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"batch norm of {self.num_features} channels: the input has {input.shape[1]}"
            )
        if is_empty:  # which adds nothing to the statistics of the step
            return F.batch_norm(input, None, None, self.weight, self.bias, training=True)
        num_ranks = _ranks_per_group(norm_group, num_clips)
        if num_ranks == 1 and norm_group * input.numel() == input.shape[0] * input.shape[1]:
            raise ValueError(
                "batch norm: a norm group has one value per channel, which has no variance; "
                "give larger groups or larger clips"
            )
        if num_ranks > 1:
            output, means, variances = normalise_across_ranks(
                input, self.weight, self.bias, num_ranks=num_ranks, eps=self.eps
            )
        else:
            output, means, variances = normalise_groups(
                input, self.weight, self.bias, norm_group=norm_group, eps=self.eps
            )
        if self.track_running_stats:
            values = input.numel() // input.shape[1]
            self._collect(means.detach(), variances.detach(), values, num_ranks)
        return output

    def _collect(self, means: Tensor, variances: Tensor, values: int, num_ranks: int) -> None:
        """Take in the statistics of groups, (groups, C) each, of `values` per channel together."""
        if self._pending is not None:
            squares = variances + means.double().square()
            self._pending[:-2] += torch.cat([means.double().sum(0), squares.sum(0)])
            self._pending[-2] += len(means)
            self._pending[-1] += values
            return
        mean, variance = pooled(means, variances, 0)
        values *= num_ranks
        self._move_running(mean, variance.mul_(values / max(values - 1, 1)), 1)

    @torch.no_grad()
    def _commit(self, sums: Tensor) -> None:
        """Move the running statistics by `sums`, laid out as `_pending`; no groups, no move."""
        mean, square = (sums[:-2] / sums[-2].clamp(min=1)).chunk(2)
        variance = (square - mean.square()) * (sums[-1] / (sums[-1] - 1).clamp(min=1))
        self._move_running(mean, variance, sums[-2].clamp(max=1))

    def _move_running(self, mean: Tensor, variance: Tensor, seen: Tensor | int) -> None:
        """One step of the moving averages, in every layer that has `seen` 1 and not 0 batches."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        dtype = self.running_mean.dtype
        self.num_batches_tracked.add_(seen if isinstance(seen, int) else seen.long())
        weight: float | Tensor | None = self.momentum
        if weight is None:
            weight = 1 / self.num_batches_tracked.clamp(min=1).to(dtype)
        if isinstance(seen, Tensor):
            weight = (weight * seen).to(dtype)
        self.running_mean.lerp_(mean.to(dtype), weight)
        self.running_var.lerp_(variance.to(dtype), weight)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SubBatchNorm3d:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._pending is not None and self.running_mean is not None:
            self._pending = self._pending.to(self.running_mean.device)
        return self

    def extra_repr(self) -> str:
        plain: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{plain}, norm_group={self.norm_group}"


def _leaf_call(layer: nn.Module, clips: fx.Proxy) -> Any:
    """A call of `layer` as one step of the graph that `torch.fx` traces, like that of a plain one.

    What the layer does depends on the number of clips and on the group size of the step.
    """
    tracer: Any = clips.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(layer), (clips,), {})


def _ranks_per_group(norm_group: int, num_clips: int) -> int:
    """How many processes with `num_clips` each a group of `norm_group` spans."""
    if num_clips % norm_group == 0:
        return 1
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    check_norm_group(norm_group, batch_clips=num_clips * world, num_parts=world)
    return norm_group // num_clips


def check_norm_group(norm_group: int, *, batch_clips: int, num_parts: int = 1) -> None:
    """Raise ValueError unless norm groups of `norm_group` fit a global batch; for before step 0.

    The batch of `batch_clips` is cut into `num_parts` contiguous equal parts, one per process. A
    part must hold whole groups, or a group whole parts. Micro-batches that follow each other in
    one process cannot share a group: for them let `batch_clips` be what all processes hold at once.
    """
    if norm_group < 1 or batch_clips % norm_group:
        raise ValueError(
            f"norm group: {norm_group} clips do not divide a batch of {batch_clips}; "
            "choose a divisor of the batch size"
        )
    part = batch_clips / num_parts
    if part % norm_group and norm_group % part:
        raise ValueError(
            f"norm group: {norm_group} clips do not fit {num_parts} processes with {part:g} clips "
            "each; choose a number of processes that keeps groups whole or splits them evenly"
        )


def convert(model: nn.Module) -> nn.Module:
    """Swap every `nn.BatchNorm3d` of `model` for a `SubBatchNorm3d`, in place.

    Parameters, buffers and hooks are the same objects as before: an optimizer or a zero-initialised
    weight is untouched, and a layer used in two places stays one layer. Returns `model` (a new
    module only when `model` itself is a `nn.BatchNorm3d`). Models without batch normalisation,
    such as video transformers, are left as they are.
    """
    swapped: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if type(child) is nn.BatchNorm3d:
                if child not in swapped:
                    swapped[child] = _converted(child)
                parent._modules[name] = swapped[child]
    return _converted(model) if type(model) is nn.BatchNorm3d else model


def _converted(plain: nn.BatchNorm3d) -> SubBatchNorm3d:
    layer = SubBatchNorm3d.__new__(SubBatchNorm3d)
    layer.__dict__.update(plain.__dict__)
    return layer


def _layers(model: nn.Module) -> list[SubBatchNorm3d]:
    return [module for module in model.modules() if isinstance(module, SubBatchNorm3d)]


def set_norm_group(model: nn.Module, clips: int | None) -> None:
    """Set the norm group of every `SubBatchNorm3d` in `model` to `clips`; None: all clips.

    Clips are those of the global batch. Cheap enough for every step. Raises ValueError below 1.
    """
    if clips is not None and clips < 1:
        raise ValueError(f"norm group: {clips} clips; give at least 1, or None for the whole batch")
    for layer in _layers(model):
        layer.norm_group = clips


def defer_statistics(model: nn.Module) -> None:
    """From now on collect statistics; `commit_statistics` moves the running ones, once per step.

    For a global batch that is spread over processes or micro-batches: only then are the running
    statistics those of one plain layer over the global batch, whatever the number of parts.
    """
    for layer in _layers(model):
        if layer.running_mean is not None:
            size = 2 * layer.num_features + 2
            layer._pending = layer.running_mean.new_zeros(size, dtype=torch.float64)


@torch.no_grad()
def commit_statistics(model: nn.Module) -> None:
    """Move the running statistics by what was collected since the last commit, on all processes.

    One exchange for the whole model. Nothing moves in layers for which nothing was collected.
    """
    pending = [(layer, layer._pending) for layer in _layers(model) if layer._pending is not None]
    if not pending:
        return
    sums = torch.cat([own for _, own in pending])
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(sums)
    parts = torch.split(sums, [len(own) for _, own in pending])
    for (layer, own), part in zip(pending, parts, strict=True):
        layer._commit(part)
        own.zero_()
