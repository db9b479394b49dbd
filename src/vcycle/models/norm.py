"""Batch norm over norm groups, the paper's sub-mini-batches (section 3.2).

In: a model with ``nn.BatchNorm3d`` layers, and at each step the clips per norm group. Out: the same
model with the same parameters and state dict, whose training statistics are those of that many
clips, so that their noise does not depend on the size of the mini-batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.nn import functional as F

from vcycle.models.norm_cpu import pooled
from vcycle.models.norm_groups import normalise_across_ranks, normalise_groups
from vcycle.models.norm_ops import collect, ops
from vcycle.models.replace import replace_layers, traced_as_leaf
from vcycle.schedule.norm_groups import check_norm_group


class SubBatchNorm3d(nn.BatchNorm3d):
    """``nn.BatchNorm3d`` whose training statistics are those of groups of contiguous clips.

    In: (B, C, T, H, W) floating point; out: the same shape, dtype and memory format. In training,
    clips i * g to (i + 1) * g - 1 of the global batch are normalised by their own mean and
    variance, with g = ``norm_group``. None is one group of all clips of this process. A group may
    span processes of ``torch.distributed`` that hold equally many clips; they exchange statistics.

    Parameters, buffers and the state dict are those of ``nn.BatchNorm3d``. The running statistics
    are those of one plain layer over the whole batch: the mean of the groups' means, and the
    variance within groups plus the variance between their means. If the global batch is spread over
    processes or micro-batches, see ``defer_statistics``.

    Raises ValueError in training if the groups do not divide the batch or have one value per
    channel. Supports first derivatives by the backward pass, not ``torch.func``. ``torch.fx``
    traces it as a leaf. An empty batch passes, as in the plain layer.
    """

    norm_group: int | None = None
    _pending: Tensor | None = None
    """Deferred statistics, summed over groups: mean (C), mean square (C), groups, values."""
    _num_commits: int = 0
    """How many times they were applied."""

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor
        traced: object = input
        if isinstance(traced, fx.Proxy):
            output = traced_as_leaf(self, traced)
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
                f"batch norm of {self.num_features} channels: the input has {input.shape[1]}; "
                "check the layer before it"
            )
        if is_empty:  # which adds nothing to the statistics of the step
            return F.batch_norm(input, None, None, self.weight, self.bias, training=True)
        num_ranks = ranks_per_group(norm_group, num_clips)
        if num_ranks == 1 and norm_group * input.numel() == input.shape[0] * input.shape[1]:
            raise ValueError(
                "batch norm: a norm group has one value per channel, which has no variance; "
                "give larger groups or larger clips"
            )
        if num_ranks > 1:
            output, statistics = normalise_across_ranks(
                input, self.weight, self.bias, num_ranks=num_ranks, eps=self.eps
            )
        else:
            output, statistics = normalise_groups(
                input, self.weight, self.bias, norm_group=norm_group, eps=self.eps
            )
        if self.track_running_stats:
            values = input.numel() // input.shape[1]
            self._collect(statistics.detach(), values, num_ranks)
        return output

    def _collect(self, statistics: Tensor, values: int, num_ranks: int) -> None:
        """Add mean and variance of groups, over ``values`` per channel in all on this process."""
        if self._pending is not None:
            compiled = torch.compiler.is_compiling()
            (collect if compiled else ops.collect)(self._pending, statistics, values)
            return
        mean, variance = pooled(statistics[0], statistics[1], 0)
        values *= num_ranks
        self._move_running(mean, variance.mul_(values / max(values - 1, 1)))

    def _move_running(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        dtype = self.running_mean.dtype
        self.num_batches_tracked.add_(1)
        weight: float | Tensor | None = self.momentum
        if weight is None:
            weight = 1 / self.num_batches_tracked.to(dtype)
        self.running_mean.lerp_(mean.to(dtype), weight)
        self.running_var.lerp_(variance.to(dtype), weight)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SubBatchNorm3d:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._pending is not None and self.running_mean is not None:
            self._pending = self._pending.to(self.running_mean.device)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Without what it collects: no optimizer applies that in a copy, which is a plain layer."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_pending", "_num_commits")}

    def reset_running_stats(self) -> None:
        """Begin anew, as a layer that collects nothing: ``update_bn`` of torch counts on that."""
        super().reset_running_stats()
        if self._pending is not None:
            self._pending = None
            warnings.warn(
                "batch norm: its running statistics were reset, and are no longer deferred; call "
                "vcycle.defer_statistics before it trains on in several parts",
                stacklevel=2,
            )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        """As the plain layer, and forget what was collected before other statistics came."""
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if self._pending is not None and f"{prefix}running_mean" in state_dict:
            self._pending.zero_()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        pending = self._pending
        if pending is not None and not pending.is_meta and bool(pending[-2] > 0):
            warnings.warn(
                "model: its state lacks the norm statistics of the last step, as if a gradient "
                "scaler skipped that; call vcycle.commit_statistics(model) before state_dict(), in "
                "all processes",
                stacklevel=2,
            )
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def extra_repr(self) -> str:
        plain: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{plain}, norm_group={self.norm_group}"


def ranks_per_group(norm_group: int, num_clips: int) -> int:
    """Number of processes, with ``num_clips`` each, that a group of ``norm_group`` spans."""
    if num_clips % norm_group == 0:
        return 1
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    check_norm_group(norm_group, batch_clips=num_clips * world, num_parts=world)
    return norm_group // num_clips


def convert_batch_norm(model: nn.Module) -> nn.Module:
    """Make every ``nn.BatchNorm3d`` of ``model`` a ``SubBatchNorm3d``, in place; return ``model``.

    Layers, parameters, buffers and hooks are the same objects as before, so an optimizer of the
    plain model stays valid, and a layer that another model shares changes there, too. A model
    without batch norm, such as a video transformer, is unchanged.
    """
    return replace_layers(model, {nn.BatchNorm3d: SubBatchNorm3d})


def sub_batch_norms(model: nn.Module) -> list[SubBatchNorm3d]:
    return [module for module in model.modules() if isinstance(module, SubBatchNorm3d)]


def set_norm_group(model: nn.Module, clips: int | None) -> None:
    """Set the norm group of every ``SubBatchNorm3d`` in ``model`` to ``clips`` of the global batch.

    None is one group of all clips. It is cheap enough to call at every step. Raises ValueError if
    ``clips`` is below 1.
    """
    if clips is not None and clips < 1:
        raise ValueError(f"norm_group {clips}: give at least 1, or None for the whole batch")
    for layer in sub_batch_norms(model):
        layer.norm_group = clips
