"""The operations of ``norm_ops`` on a GPU: one launch of a Triton kernel each.

In and out: as ``norm_ops`` says. The memory of a norm group, (outer, C, inner), is cut into parts
along ``outer``, so that about a thousand programs share the work whatever the number of groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vcycle.models.norm_kernels import (
    collect_kernel,
    gradient_kernel,
    gradient_sums_kernel,
    normalise_kernel,
    statistics_kernel,
)

_PROGRAMS = 1024  # enough for the largest GPU; a constant, so that all ranks cut alike
_MAX_PARTS = 256
_TILE = 4096  # values that a program holds at a time
_PARTS = 32  # whose sums a program adds up at a time
_WARPS = 8


@dataclass(frozen=True)
class _Cut:
    """How programs share the memory (groups, outer, channels, inner) of clips."""

    groups: int
    outer: int
    channels: int
    inner: int
    tile: tuple[int, int, int]
    """Sizes along outer, channels and inner; powers of 2."""
    parts: int
    rows: int
    """Size of a part along outer; the last may be smaller."""

    @property
    def grid(self) -> tuple[int, int, int]:
        return -(-self.channels // self.tile[1]), self.groups, self.parts

    @property
    def constants(self) -> dict[str, Any]:
        outer, channels, inner = self.tile
        sizes = {"OUTER": outer, "CHANNELS": channels, "INNER": inner}
        return {"channels": self.channels, **sizes, "num_warps": _WARPS}

    def empty(self, x: Tensor, *leading: int) -> Tensor:
        dtype = torch.promote_types(x.dtype, torch.float32)
        return torch.empty((*leading, self.channels), device=x.device, dtype=dtype)


def _cut(x: Tensor, norm_group: int) -> _Cut:
    return _cut_memory(x.shape, x.is_contiguous(memory_format=torch.channels_last_3d), norm_group)


@cache
def _cut_memory(shape: torch.Size, is_channels_last: bool, norm_group: int) -> _Cut:
    groups, channels, values = shape[0] // norm_group, shape[1], shape[2:].numel()
    outer, inner = (norm_group * values, 1) if is_channels_last else (norm_group, values)
    tile_inner = min(_power_of_2(inner), 1024)
    tile_channels = min(_power_of_2(channels), max(1, 1024 // tile_inner), 32)
    tile_outer = min(_power_of_2(outer), _TILE // (tile_inner * tile_channels))
    programs = groups * -(-channels // tile_channels)
    parts = min(-(-_PROGRAMS // programs), _MAX_PARTS, -(-outer // tile_outer))
    rows = -(-outer // parts)
    tile = (tile_outer, tile_channels, tile_inner)
    return _Cut(groups, outer, channels, inner, tile, -(-outer // rows), rows)


def _power_of_2(size: int) -> int:
    """The smallest one that is not below ``size``."""
    return 1 << (size - 1).bit_length()


def partial_statistics(x: Tensor, norm_group: int) -> Tensor:
    """See ``norm_ops``."""
    cut = _cut(x, norm_group)
    partials = cut.empty(x, 2, cut.parts, cut.groups)
    with _device(x):
        statistics_kernel[cut.grid](x, partials, cut.outer, cut.inner, cut.rows, **cut.constants)
    return partials


def normalise(
    x: Tensor,
    partials: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    norm_group: int,
    num_ranks: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """See ``norm_ops``."""
    cut = _cut(x, norm_group)
    out, statistics = torch.empty_like(x), cut.empty(x, 3, cut.groups)
    with _device(x):
        normalise_kernel[cut.grid](
            *(x, out, partials, statistics, weight, bias),
            *(cut.outer, cut.inner, cut.rows, cut.parts, num_ranks),
            **cut.constants,
            PARTS=_PARTS,
            eps=eps,
        )
    return out, statistics


def gradient_sums(grad: Tensor, x: Tensor, statistics: Tensor, norm_group: int) -> Tensor:
    """See ``norm_ops``."""
    cut = _cut(x, norm_group)
    sums = cut.empty(x, 2, cut.parts, cut.groups)
    with _device(x):
        gradient_sums_kernel[cut.grid](
            grad, x, statistics, sums, cut.outer, cut.inner, cut.rows, **cut.constants
        )
    return sums


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
    """See ``norm_ops``."""
    cut = _cut(x, norm_group)
    grad_x, of_parameters = torch.empty_like(x), cut.empty(x, 2)
    with _device(x):
        gradient_kernel[cut.grid](
            *(grad, x, grad_x, statistics, weight, sums, own_sums, of_parameters),
            *(cut.outer, cut.inner, cut.rows, cut.parts, num_ranks),
            **cut.constants,
            PARTS=_PARTS,
        )
    return grad_x, of_parameters


def collect(pending: Tensor, statistics: Tensor, values: int) -> None:
    """See ``norm_ops``."""
    _, groups, channels = statistics.shape
    with _device(pending):
        collect_kernel[(-(-channels // 128),)](
            pending, statistics, groups, channels, values, CHANNELS=128, num_warps=4
        )


@contextmanager
def _device(x: Tensor) -> Iterator[None]:
    """Triton launches on the current device, which may not be that of ``x``."""
    if not x.is_cuda or x.device.index == torch.cuda.current_device():
        yield
        return
    with torch.cuda.device(x.device):
        yield
