"""The arithmetic of norm groups: normalise (B, C, T, H, W) by the statistics of groups of clips.

In: a batch, scale and offset per channel, the clips of a group. Out: the normalised batch, and per
group and channel the mean and the biased variance, both (groups, C). Four ways to the same
numbers: in eager mode whole-batch kernels on a CPU, and otherwise one fused kernel call per group;
under ``torch.compile`` a formula that fuses; and, for a group that spans processes, an exchange of
statistics within them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from vcycle.models.norm_cpu import NormaliseOnCpu, pooled

_kernel_backward = torch.ops.aten.native_batch_norm_backward.default


def normalise_groups(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, norm_group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise every ``norm_group`` contiguous clips of ``x``; they divide the batch."""
    reduced = weight is not None and weight.dtype in (torch.float16, torch.bfloat16)
    if (
        torch.compiler.is_compiling() or reduced
    ):  # the kernels take parameters in full precision only
        return _traced(x, weight, bias, norm_group, eps)
    if not (x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last_3d)):
        x = x.contiguous()  # the kernels write results in the layout of x
    full = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    normalise: Any = NormaliseOnCpu if full else _NormaliseGroups
    out, mean, variance = normalise.apply(x, weight, bias, norm_group, eps)
    return out, mean, variance


def _traced(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, norm_group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    channels = x.shape[1]
    grouped = x.unflatten(0, (-1, norm_group))  # type: ignore[no-untyped-call]
    values = grouped.to(torch.promote_types(x.dtype, torch.float32))  # (G, g, C, T, H, W)
    var, mean = torch.var_mean(values, dim=(1, 3, 4, 5), correction=0, keepdim=True)
    out = (values - mean) * torch.rsqrt(var + eps)
    if weight is not None:
        out = out * weight.view(channels, 1, 1, 1)
    if bias is not None:
        out = out + bias.view(channels, 1, 1, 1)
    return out.to(x.dtype).flatten(0, 1), mean.view(-1, channels), var.view(-1, channels)


class _NormaliseGroups(torch.autograd.Function):
    """One kernel call per group, each writing its part of the result: nothing is concatenated."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        norm_group: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.promote_types(x.dtype, torch.float32)
        mean = x.new_empty((x.shape[0] // norm_group, x.shape[1]), dtype=dtype)
        out, invstd = torch.empty_like(x), torch.empty_like(mean)
        # Without parameters the kernel would take its statistics to be of the dtype of the clips.
        scale = torch.ones_like(mean[0]) if weight is None else weight
        parts, results = torch.split(x, norm_group), torch.split(out, norm_group)
        for part, *result in zip(parts, results, mean, invstd, strict=True):
            torch.native_batch_norm(part, scale, bias, None, None, True, 0.0, eps, out=result)
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.norm_group, ctx.eps, ctx.has_bias = norm_group, eps, bias is not None
        variance = invstd.pow(-2).sub_(eps)
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        return out, mean, variance

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return (None,) * 5
        x, weight, mean, invstd = ctx.saved_tensors
        if x.stride() != grad_out.stride():
            grad_out = torch.empty_like(x).copy_(grad_out)
        grad_x = torch.empty_like(x)
        scale = torch.ones_like(mean[0]) if weight is None else weight
        parts = zip(*(torch.split(t, ctx.norm_group) for t in (grad_x, grad_out, x)), strict=True)
        sums = []
        for (result, grad, part), m, i in zip(parts, mean, invstd, strict=True):
            of_x, of_scale, of_bias = _kernel_backward(
                *(grad, part, scale, None, None, m, i, True, ctx.eps, [True, True, True])
            )
            result.copy_(of_x)
            sums += [of_scale, of_bias]
        grad_weight = None if weight is None else torch.stack(sums[::2]).sum(0)
        grad_bias = torch.stack(sums[1::2]).sum(0) if ctx.has_bias else None
        return grad_x, grad_weight, grad_bias, None, None


def normalise_across_ranks(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, *, num_ranks: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise ``x`` as one part of a group that spans ``num_ranks`` consecutive processes.

    All processes of the group hold equally many clips and get the same mean and variance, (1, C).
    Gradients of ``weight`` and ``bias`` are those of this process's clips.
    """
    if torch.compiler.is_compiling():
        # Here and not as a decorator, which would import the compiler with every model.
        eager: Any = torch.compiler.disable(normalise_across_ranks)  # type: ignore[no-untyped-call]
        return eager(x, weight, bias, num_ranks=num_ranks, eps=eps)  # type: ignore[no-any-return]
    dtype = torch.promote_types(x.dtype, torch.float32)
    ones = torch.ones(x.shape[1], device=x.device, dtype=dtype)
    weight = ones if weight is None else weight.to(dtype)
    bias = torch.zeros_like(ones) if bias is None else bias.to(dtype)
    processes = _subgroup(dist.group.WORLD, num_ranks)
    out: Tensor
    out, mean, var = _NormaliseAcrossRanks.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, eps, processes
    )
    return out, mean[None], var[None]


@lru_cache(maxsize=16)
def _subgroup(world: Any, num_ranks: int) -> Any:
    """The group of ``num_ranks`` consecutive processes; all processes create it together."""
    if num_ranks == dist.get_world_size(world):
        return world
    own, _ = dist.new_subgroups(group_size=num_ranks)  # type: ignore[no-untyped-call]
    return own


class _NormaliseAcrossRanks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, processes: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        own = torch.stack(torch.var_mean(values, dim=(0, 2, 3, 4), correction=0))  # (2, C)
        every = [torch.empty_like(own) for _ in range(dist.get_world_size(processes))]
        dist.all_gather(every, own, group=processes)
        variances, means = torch.stack(every, 1)  # (ranks, C) each
        mean, var = pooled(means, variances, 0)
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(var + eps))
        ctx.processes = processes
        ctx.mark_non_differentiable(mean, var)
        out = F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)
        return out, mean, var

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        per_channel = (-1, 1, 1, 1)
        grad = grad_out.to(mean.dtype)
        normalised = (x - mean.view(per_channel)) * invstd.view(per_channel)
        dims = (0, 2, 3, 4)
        own = torch.stack([grad.sum(dims), (grad * normalised).sum(dims)])  # (2, C)
        total = own.clone()
        dist.all_reduce(total, group=ctx.processes)
        total /= dist.get_world_size(ctx.processes) * x[:, 0].numel()
        grad_x = grad - total[0].view(per_channel) - normalised * total[1].view(per_channel)
        grad_x *= (invstd * weight).view(per_channel)
        own = own.to(weight.dtype)
        return grad_x.to(x.dtype), own[1], own[0], None, None
