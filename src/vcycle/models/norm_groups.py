"""Normalise (B, C, T, H, W) by the statistics of groups of clips.

In: a batch, scale and offset per channel, and the clips of a group. Out: the normalised batch, and
mean and biased variance of each group and channel, (groups, C). There are four ways to the same
numbers: whole-batch kernels on a CPU (``norm_cpu``), in half precision one group after the other; a
constant number of operations on every other device, and for groups that span processes
(``norm_ops``); under ``torch.compile``, a formula that the compiler fuses.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vcycle.models.norm_cpu import NormaliseOnCpu
from vcycle.models.norm_ops import ops


def normalise_groups(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, norm_group: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Normalise every ``norm_group`` contiguous clips of ``x``; they divide the batch.

    Returns the result and statistics (2 or more, groups, C): mean and biased variance first.
    """
    if torch.compiler.is_compiling():
        return _traced(x, weight, bias, norm_group, eps)
    x = _dense(x)
    if x.device.type != "cpu":
        return NormaliseGroups.apply(x, weight, bias, norm_group, eps, None)  # type: ignore[no-untyped-call, no-any-return]
    if x.dtype in (torch.float16, torch.bfloat16):
        return _loop_over_groups(x, weight, bias, norm_group, eps)
    return NormaliseOnCpu.apply(x, weight, bias, norm_group, eps)  # type: ignore[no-untyped-call, no-any-return]


def normalise_across_ranks(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, num_ranks: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Normalise ``x`` as one part of a group that spans ``num_ranks`` consecutive processes.

    All processes of the group hold equally many clips and get the same statistics, (3, 1, C):
    mean, biased variance and 1 / deviation. Gradients of ``weight`` and ``bias`` are those of this
    process's clips.
    """
    if torch.compiler.is_compiling():
        # Here and not as a decorator, which would import the compiler with every model.
        eager: Any = torch.compiler.disable(normalise_across_ranks)  # type: ignore[no-untyped-call]
        return eager(x, weight, bias, num_ranks=num_ranks, eps=eps)  # type: ignore[no-any-return]
    processes = _subgroup(dist.group.WORLD, num_ranks)
    x = _dense(x)
    out, statistics = NormaliseGroups.apply(x, weight, bias, len(x), eps, processes)  # type: ignore[no-untyped-call]
    return out, statistics


def _dense(x: Tensor) -> Tensor:
    """``x`` in one of the two memory formats that kernels read and write."""
    if x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last_3d):
        return x
    return x.contiguous()


def _loop_over_groups(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, norm_group: int, eps: float
) -> tuple[Tensor, Tensor]:
    """For half precision on a CPU, whose kernels take parameters in single precision."""
    weight = x.new_ones(x.shape[1], dtype=torch.float32) if weight is None else weight.float()
    bias = None if bias is None else bias.float()
    outs, means, invstds = zip(
        *(
            torch.native_batch_norm(group, weight, bias, None, None, True, 0.0, eps)
            for group in torch.split(x, norm_group)
        ),
        strict=True,
    )
    statistics = torch.stack([torch.stack(means), torch.stack(invstds).pow(-2) - eps])
    return torch.cat(outs), statistics


def _traced(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, norm_group: int, eps: float
) -> tuple[Tensor, Tensor]:
    channels = x.shape[1]
    grouped = x.unflatten(0, (-1, norm_group))  # type: ignore[no-untyped-call]
    values = grouped.to(torch.promote_types(x.dtype, torch.float32))  # (G, g, C, T, H, W)
    var, mean = torch.var_mean(values, dim=(1, 3, 4, 5), correction=0, keepdim=True)
    out = (values - mean) * torch.rsqrt(var + eps)
    if weight is not None:
        out = out * weight.view(channels, 1, 1, 1)
    if bias is not None:
        out = out + bias.view(channels, 1, 1, 1)
    statistics = torch.stack([mean.view(-1, channels), var.view(-1, channels)])
    return out.to(x.dtype).flatten(0, 1), statistics


class NormaliseGroups(torch.autograd.Function):
    """(x, weight, bias, norm_group, eps, processes) -> the result and statistics (3, G, C).

    If ``processes`` are given, ``x`` is one part of a single group that spans them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        norm_group: int,
        eps: float,
        processes: Any,
    ) -> tuple[Tensor, Tensor]:
        partials = ops.partial_statistics(x, norm_group)
        num_ranks = 1
        if processes is not None:
            num_ranks = dist.get_world_size(processes)
            every = [torch.empty_like(partials) for _ in range(num_ranks)]
            dist.all_gather(every, partials, group=processes)
            partials = torch.cat(every, 1)
        out, statistics = ops.normalise(x, partials, weight, bias, norm_group, num_ranks, eps)
        ctx.save_for_backward(x, weight, statistics)
        ctx.norm_group, ctx.processes, ctx.num_ranks = norm_group, processes, num_ranks
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.mark_non_differentiable(statistics)
        # All processes exchange sums in the backward pass, also those without a gradient.
        ctx.set_materialize_grads(processes is not None)
        return out, statistics

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        x, weight, statistics = ctx.saved_tensors
        if x.stride() != grad.stride():
            grad = torch.empty_like(x).copy_(grad)
        own = total = ops.gradient_sums(grad, x, statistics, ctx.norm_group)
        if ctx.processes is not None:
            total = own.clone()
            dist.all_reduce(total, group=ctx.processes)
        grad_x, (by_bias, by_weight) = ops.gradient(
            grad, x, statistics, weight, total, own, ctx.norm_group, ctx.num_ranks
        )
        grad_weight = None if weight is None else by_weight.to(weight.dtype)
        grad_bias = None if ctx.bias_dtype is None else by_bias.to(ctx.bias_dtype)
        return grad_x, grad_weight, grad_bias, None, None, None


@lru_cache(maxsize=16)
def _subgroup(world: Any, num_ranks: int) -> Any:
    """The group of ``num_ranks`` consecutive processes; all processes create it together."""
    if num_ranks == dist.get_world_size(world):
        return world
    own, _ = dist.new_subgroups(group_size=num_ranks)  # type: ignore[no-untyped-call]
    return own
