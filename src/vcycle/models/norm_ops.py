"""Operations that normalise all norm groups of a batch at once.

In: clips (B, C, T, H, W), contiguous or channels last, any floating-point type. Out: normalised
clips, gradients, and statistics (G, C) of groups. Each operation is one kernel on a GPU
(``norm_triton``) and a few operations of torch elsewhere, whatever the number of groups. As
operations of torch's dispatcher they can be counted, profiled and run on the meta device.

Statistics and sums are float32, or float64 for clips of that type. A group may span ``num_ranks``
processes: the caller exchanges the partial results between the operations.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from vcycle.models.norm_cpu import pooled

_library = torch.library.Library("vcycle", "DEF")  # type: ignore[no-untyped-call]
for _schema in (
    "partial_statistics(Tensor x, int norm_group) -> Tensor",
    "normalise(Tensor x, Tensor partials, Tensor? weight, Tensor? bias, int norm_group, "
    "int num_ranks, float eps) -> (Tensor, Tensor)",
    "gradient_sums(Tensor grad, Tensor x, Tensor statistics, int norm_group) -> Tensor",
    "gradient(Tensor grad, Tensor x, Tensor statistics, Tensor? weight, Tensor sums, "
    "Tensor own_sums, int norm_group, int num_ranks) -> (Tensor, Tensor)",
    "collect(Tensor(a!) pending, Tensor statistics, int values) -> ()",
):
    _library.define(_schema)  # type: ignore[no-untyped-call]
ops: Any = torch.ops.vcycle


def group_memory(x: Tensor, norm_group: int) -> Tensor:
    """``x`` as its memory lies, (groups, outer, channels, inner).

    (outer, inner) is (clips, T * H * W) if ``x`` is contiguous, (clips * T * H * W, 1) if it is
    channels last.
    """
    groups, channels = x.shape[0] // norm_group, x.shape[1]
    if x.is_contiguous(memory_format=torch.channels_last_3d):
        return x.permute(0, 2, 3, 4, 1).view(groups, -1, channels, 1)
    return x.view(groups, norm_group, channels, -1)


def partial_statistics(x: Tensor, norm_group: int) -> Tensor:
    """(2, parts, G, C): means of parts of groups, and sums of squared deviations from them."""
    values = _values(x, norm_group)
    variance, mean = torch.var_mean(values, (1, 3), correction=0)
    return torch.stack([mean, variance * _per_channel(values)])[:, None]


def normalise(
    x: Tensor,
    partials: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    norm_group: int,
    num_ranks: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """The normalised clips, and statistics (3, G, C): mean, biased variance, 1 / deviation.

    ``partials`` holds those of all ranks, one after the other.
    """
    values = _values(x, norm_group)
    mean, variance = pooled(partials[0], partials[1] / _per_channel(values), 0)
    invstd = torch.rsqrt(variance + eps)
    scale = invstd if weight is None else invstd * weight
    result = (values - _spread(mean)) * _spread(scale)
    if bias is not None:
        result += bias.to(result.dtype).view(-1, 1)
    return _like(x, result, norm_group), torch.stack([mean, variance, invstd])


def gradient_sums(grad: Tensor, x: Tensor, statistics: Tensor, norm_group: int) -> Tensor:
    """(2, parts, G, C): sums of ``grad`` and of ``grad`` times normalised ``x``, of parts."""
    mean, _, invstd = statistics
    grads = _values(grad, norm_group)
    products = grads * (_values(x, norm_group) - _spread(mean))
    return torch.stack([grads.sum((1, 3)), products.sum((1, 3)) * invstd])[:, None]


def gradient(
    grad: Tensor,
    x: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    sums: Tensor,
    own_sums: Tensor,
    norm_group: int,
    num_ranks: int,
) -> tuple[Tensor, Tensor]:
    """The gradient of ``x``, and those of bias and weight, (2, C).

    ``sums`` are those of ``gradient_sums`` added up over ranks, ``own_sums`` those of this rank,
    which alone make the gradients of bias and weight. With y = normalised x, n values per channel
    in a group, and sums over them:

        scale * (grad - sum(grad) / n - y * sum(grad * y) / n),  scale = weight / deviation
    """
    mean, _, invstd = statistics
    grads = _values(grad, norm_group)
    of_grad, of_products = sums.sum(1) / (_per_channel(grads) * num_ranks)
    scale = invstd if weight is None else invstd * weight
    result = (_values(x, norm_group) - _spread(mean)) * _spread(invstd * of_products)
    result = (grads - _spread(of_grad) - result) * _spread(scale)
    return _like(x, result, norm_group), own_sums.sum((1, 2))


def collect(pending: Tensor, statistics: Tensor, values: int) -> None:
    """Add statistics of groups, of ``values`` per channel in all, to ``pending``, float64.

    It holds sums over groups: of means (C), of mean squares (C), of groups and of values.
    """
    means, variances = statistics[0].double(), statistics[1].double()
    sums = torch.cat([means.sum(0), (variances + means.square()).sum(0)])
    pending[:-2] += sums
    pending[-2] += len(means)
    pending[-1] += values


def _values(x: Tensor, norm_group: int) -> Tensor:
    """(groups, outer, channels, inner) in the precision of sums."""
    return group_memory(x, norm_group).to(torch.promote_types(x.dtype, torch.float32))


def _per_channel(values: Tensor) -> int:
    return values.shape[1] * values.shape[3]


def _spread(of_groups: Tensor) -> Tensor:
    """(G, C) -> (G, 1, C, 1)"""
    return of_groups[:, None, :, None]


def _like(x: Tensor, values: Tensor, norm_group: int) -> Tensor:
    out = torch.empty_like(x)
    group_memory(out, norm_group).copy_(values)
    return out


def _sums_on_meta(x: Tensor, norm_group: int, *leading: int) -> Tensor:
    dtype = torch.promote_types(x.dtype, torch.float32)
    return x.new_empty((*leading, len(x) // norm_group, x.shape[1]), dtype=dtype)


_ON_META: dict[str, Callable[..., Any]] = {
    "partial_statistics": lambda x, norm_group: _sums_on_meta(x, norm_group, 2, 1),
    "normalise": lambda x, partials, weight, bias, norm_group, *_: (
        torch.empty_like(x),
        _sums_on_meta(x, norm_group, 3),
    ),
    "gradient_sums": lambda grad, x, statistics, norm_group: _sums_on_meta(x, norm_group, 2, 1),
    "gradient": lambda grad, x, statistics, *_: (
        torch.empty_like(x),
        statistics.new_empty((2, x.shape[1])),
    ),
    "collect": lambda pending, statistics, values: None,
}


def _launch(name: str) -> Callable[..., Any]:
    def launch(*arguments: Any) -> Any:
        from vcycle.models import norm_triton  # by the first batch on a GPU, not with the models

        return getattr(norm_triton, name)(*arguments)

    return launch


for _function in (partial_statistics, normalise, gradient_sums, gradient, collect):
    _name = _function.__name__
    _library.impl(_name, _function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    _library.impl(_name, _ON_META[_name], "Meta")  # type: ignore[no-untyped-call]
    if find_spec("triton"):
        _library.impl(_name, _launch(_name), "CUDA")  # type: ignore[no-untyped-call]
