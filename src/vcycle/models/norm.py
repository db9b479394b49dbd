"""Batch normalisation over norm groups: the paper's sub-mini-batches (section 3.2).

In: a model with `nn.BatchNorm3d` layers, and per step the number of clips of a norm group. Out: the
same model, parameters and state dict, whose training statistics come from that many clips at a
time, so that the noise of the statistics does not change with the size of the mini-batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class SubBatchNorm3d(nn.BatchNorm3d):
    """`nn.BatchNorm3d` whose training statistics are those of groups of contiguous clips.

    In: (B, C, T, H, W) floating point; out: the same shape, dtype and memory format. In training,
    clips i * g to (i + 1) * g - 1 are normalised by their own mean and variance, g being
    `group_clips`; None means the whole batch. Parameters, buffers and the state dict are those of
    `nn.BatchNorm3d`. The running statistics are what one plain layer over the whole batch would
    hold: the mean of the groups' means, and the variance within plus between the groups.

    Raises ValueError in training if the groups do not divide the batch.
    """

    group_clips: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        group_clips = self.group_clips
        if not self._uses_batch_statistics() or group_clips in (None, input.shape[0]):
            return super().forward(input)
        self._check_input_dim(input)
        if group_clips is None or input.shape[0] % group_clips:
            raise ValueError(
                f"norm group: {group_clips} clips do not divide a batch of {input.shape[0]}; "
                "choose a divisor of the batch size"
            )
        output: Tensor
        output, mean, invstd = _GroupNormalise.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, group_clips, self.eps
        )
        if self.track_running_stats:
            variance = invstd.pow(-2) - self.eps  # of each group, biased: (B / g, C)
            self._update_running(mean, variance, input.numel() // input.shape[1])
        return output

    def _uses_batch_statistics(self) -> bool:
        return self.training or self.running_mean is None

    @torch.no_grad()
    def _update_running(self, means: Tensor, variances: Tensor, count: int) -> None:
        """Move the running statistics by the batch's: `count` values per channel."""
        if self.running_mean is None or self.running_var is None:
            return
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
        variance *= count / max(count - 1, 1)
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        weight = 1 / self.num_batches_tracked.float() if momentum is None else momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)

    def extra_repr(self) -> str:
        plain: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return f"{plain}, group_clips={self.group_clips}"


class _GroupNormalise(torch.autograd.Function):
    """Normalise each group of clips in place of one result: no split, no concatenation."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        group_clips: int,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        num_groups, channels = x.shape[0] // group_clips, x.shape[1]
        out = torch.empty_like(x)
        statistics_dtype = x.dtype if weight is None else weight.dtype
        mean = x.new_empty((num_groups, channels), dtype=statistics_dtype)
        invstd = torch.empty_like(mean)
        for i, clips in enumerate(_group_slices(num_groups, group_clips)):
            torch.native_batch_norm(
                x[clips],
                weight,
                bias,
                None,
                None,
                True,
                0.0,
                eps,
                out=(out[clips], mean[i], invstd[i]),
            )
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.group_clips, ctx.eps, ctx.has_bias = group_clips, eps, bias is not None
        ctx.mark_non_differentiable(mean, invstd)
        return out, mean, invstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], weight is not None, ctx.has_bias]
        grad_x = torch.empty_like(x) if mask[0] else None
        grad_weight = torch.zeros_like(weight) if mask[1] else None
        grad_bias = mean.new_zeros(mean.shape[1]) if mask[2] else None
        for i, clips in enumerate(_group_slices(mean.shape[0], ctx.group_clips)):
            part_x, part_weight, part_bias = torch.ops.aten.native_batch_norm_backward(
                grad_out[clips],
                x[clips],
                weight,
                None,
                None,
                mean[i],
                invstd[i],
                True,
                ctx.eps,
                mask,
            )
            if grad_x is not None:
                grad_x[clips] = part_x
            if grad_weight is not None:
                grad_weight += part_weight
            if grad_bias is not None:
                grad_bias += part_bias
        return grad_x, grad_weight, grad_bias, None, None


def _group_slices(num_groups: int, group_clips: int) -> list[slice]:
    return [slice(i * group_clips, (i + 1) * group_clips) for i in range(num_groups)]


def convert(model: nn.Module) -> nn.Module:
    """Swap every `nn.BatchNorm3d` of `model` for a `SubBatchNorm3d`, in place.

    Parameters and buffers are the same objects as before: an optimizer or a zero-initialised
    weight is untouched, and a layer used in two places stays one layer. Returns `model` (a new
    module only when `model` itself is a `nn.BatchNorm3d`). Models without batch normalisation,
    such as video transformers, are left as they are.
    """
    swapped: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, nn.BatchNorm3d) and not isinstance(child, SubBatchNorm3d):
                if child not in swapped:
                    swapped[child] = _converted(child)
                parent._modules[name] = swapped[child]
    if isinstance(model, nn.BatchNorm3d) and not isinstance(model, SubBatchNorm3d):
        return _converted(model)
    return model


def _converted(plain: nn.BatchNorm3d) -> SubBatchNorm3d:
    layer = SubBatchNorm3d(
        plain.num_features,
        eps=plain.eps,
        momentum=plain.momentum,
        affine=plain.affine,
        track_running_stats=plain.track_running_stats,
        device="meta",
    )
    layer._parameters = plain._parameters
    layer._buffers = plain._buffers
    layer.training = plain.training
    return layer


def set_group_size(model: nn.Module, clips: int | None) -> None:
    """Set the norm group of every `SubBatchNorm3d` in `model` to `clips`; None: the whole batch.

    Cheap enough for every step. Raises ValueError if `clips` is below 1.
    """
    if clips is not None and clips < 1:
        raise ValueError(f"norm group: {clips} clips; give at least 1, or None for the whole batch")
    for module in model.modules():
        if isinstance(module, SubBatchNorm3d):
            module.group_clips = clips
