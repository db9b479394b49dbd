"""Normalise clips by the statistics of norm groups, on a CPU in full precision.

In: (B, C, T, H, W), float32 or float64. Out: the normalised clips, and the statistics.

In contiguous memory torch's batch norm sums one value at a time. As a matrix with a row per clip
and channel, the batch goes through kernels that sum eight at a time, and sums of rows give those of
groups. In channels-last memory, batch norm's own kernel sums each group. In both, the result takes
one pass over the batch, and its gradient two, since torch has no kernel for ``a * x + b * y + c``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_group_norm_backward = torch.ops.aten.native_group_norm_backward.default
_batch_norm_backward = torch.ops.aten.native_batch_norm_backward.default

_FAR = 30  # if a mean is this many standard deviations from zero, sums lose digits
_RUN = 64  # most values that a kernel may sum sequentially in single precision


def pooled(means: Tensor, variances: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of the union of equally large sets, from those of each along ``dim``.

    ``dim`` is removed. The mean is the mean of the means; the variance is the variance within the
    sets plus the variance between their means.
    """
    between, mean = torch.var_mean(means, dim, correction=0)
    return mean, variances.mean(dim).add_(between)


class NormaliseOnCpu(torch.autograd.Function):
    """(x, weight, bias, norm_group, eps) -> result, statistics (2, G, C): mean, biased variance.

    ``x`` is float32 or float64, contiguous or channels last; so is the result.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        norm_group: int,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        matrix = _matrix(x, norm_group)
        mean, variance, out = matrix.statistics(x)
        invstd = variance.add(eps).rsqrt_()
        scale = invstd if weight is None else invstd * weight
        shift = -mean * scale if bias is None else torch.addcmul(bias, mean, scale, value=-1)
        matrix.write(out, x, scale, shift)
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.norm_group, ctx.has_bias = norm_group, bias is not None
        statistics = torch.stack([mean, variance])
        ctx.mark_non_differentiable(statistics)
        ctx.set_materialize_grads(False)
        return out, statistics

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 5
        x, weight, mean, invstd = ctx.saved_tensors
        if x.stride() != grad.stride():
            grad = torch.empty_like(x).copy_(grad)
        matrix = _matrix(x, ctx.norm_group)
        by_weight, by_bias = matrix.sums(grad, x, mean, invstd)
        # The gradient by x, the mean and variance depending on x too, is
        # scale * (grad - by_bias / n - normalised x * by_weight / n), n being a group's values.
        scale = invstd if weight is None else invstd * weight
        share = scale * (mean.numel() / -x.numel())
        slope = share * invstd * by_weight
        shift = (share * by_bias).addcmul_(slope, mean, value=-1)
        grad_x = torch.empty_like(x)
        matrix.write(grad_x, grad, scale, shift)
        matrix.add(grad_x, x, slope)
        grad_weight = None if weight is None else by_weight.sum(0)
        grad_bias = by_bias.sum(0) if ctx.has_bias else None
        return grad_x, grad_weight, grad_bias, None, None


def _matrix(x: Tensor, norm_group: int) -> _Contiguous | _ChannelsLast:
    last = x.is_contiguous(memory_format=torch.channels_last_3d)
    return _ChannelsLast(x, norm_group) if last else _Contiguous(x, norm_group)


def _sums_of_groups(
    groups: Iterable[tuple[Tensor, Tensor]], mean: Tensor, invstd: Tensor
) -> tuple[Tensor, Tensor]:
    """Of grad * normalised x and of grad, (G, C) each, from the grad and x of each group."""
    wanted = [False, True, True]
    each = [
        _batch_norm_backward(*of_group, None, None, None, *statistics, True, 0.0, wanted)
        for of_group, *statistics in zip(groups, mean, invstd, strict=True)
    ]
    of_products, of_grad = (torch.stack([sums[i] for sums in each]) for i in (1, 2))
    return of_products, of_grad


class _Contiguous:
    """A row of T*H*W values for each clip and channel."""

    def __init__(self, x: Tensor, norm_group: int) -> None:
        clips, channels = x.shape[:2]
        self.grouped = (clips // norm_group, norm_group, channels)
        self.num_rows, self.num_values = clips * channels, x[0, 0].numel()

    def _rows(self, x: Tensor) -> Tensor:
        return x.view(1, self.num_rows, self.num_values)

    def _per_row(self, factor: Tensor) -> Tensor:
        """(G, C) -> (rows)"""
        return factor[:, None].expand(self.grouped).reshape(-1)

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance (G, C), and memory like that of ``x`` to write to."""
        # Group norm has the fastest sums over rows. Its result is not used.
        clips, channels = x.shape[:2]
        room, mean, invstd = torch.native_group_norm(
            x, None, None, clips, channels, self.num_values, channels, 0.0
        )
        variance = invstd.pow_(-2)
        return *pooled(mean.view(self.grouped), variance.view(self.grouped), 1), room

    def sums(self, grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor]:
        """Of grad * normalised x and of grad, (G, C) each."""
        if bool((mean * invstd).abs().max() > _FAR):
            groups = zip(
                torch.split(grad, self.grouped[1]), torch.split(x, self.grouped[1]), strict=True
            )
            return _sums_of_groups(groups, mean, invstd)
        # The kernel sums grad * x and then subtracts the sums of grad * mean.
        # Both lose digits if many terms have one sign, so rows are cut into short runs.
        size = self.num_values
        size = next(n for n in range(min(_RUN, size), size + 1) if size % n == 0)
        runs_per_row = self.num_values // size
        runs = self.num_rows * runs_per_row
        statistics = (
            self._per_row(factor).repeat_interleave(runs_per_row).view(1, runs)
            for factor in (mean, invstd)
        )
        of_products, of_grad = _group_norm_backward(
            *(grad.view(1, runs, size), x.view(1, runs, size), *statistics, x.new_ones(runs)),
            *(1, runs, size, runs, [False, True, True]),
        )[1:]
        grouped = (*self.grouped, runs_per_row)
        return of_products.view(grouped).sum((1, 3)), of_grad.view(grouped).sum((1, 3))

    def write(self, out: Tensor, x: Tensor, scale: Tensor, shift: Tensor) -> None:
        """out = x * scale + shift, with factors of (G, C)."""
        # Batch norm with fixed statistics of 0 and 1 is one fast pass.
        scale, shift = self._per_row(scale), self._per_row(shift)
        zero, one = torch.zeros_like(scale), torch.ones_like(scale)
        torch.native_batch_norm(
            *(self._rows(x), scale, shift, zero, one, False, 0.0, 0.0),
            out=(self._rows(out), torch.empty_like(zero), torch.empty_like(zero)),
        )

    def add(self, out: Tensor, x: Tensor, scale: Tensor) -> None:
        """out += x * scale"""
        self._rows(out).addcmul_(self._rows(x), self._per_row(scale).view(-1, 1))


class _ChannelsLast:
    """For each group a column of values for each channel."""

    def __init__(self, x: Tensor, norm_group: int) -> None:
        self.num_groups = len(x) // norm_group

    def _columns(self, x: Tensor) -> Tensor:
        """(G, values of a group, C)"""
        return x.permute(0, 2, 3, 4, 1).view(self.num_groups, -1, x.shape[1])

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        each = [torch.batch_norm_update_stats(group, None, None, 0.0) for group in self._columns(x)]
        mean, variance = (torch.stack(of_groups) for of_groups in zip(*each, strict=True))
        return mean, variance, torch.empty_like(x)

    def sums(self, grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor]:
        groups = zip(self._columns(grad), self._columns(x), strict=True)
        return _sums_of_groups(groups, mean, invstd)

    def write(self, out: Tensor, x: Tensor, scale: Tensor, shift: Tensor) -> None:
        x, out = self._columns(x), self._columns(out)
        torch.addcmul(shift[:, None], x, scale[:, None], out=out)

    def add(self, out: Tensor, x: Tensor, scale: Tensor) -> None:
        self._columns(out).addcmul_(self._columns(x), scale[:, None])
