"""Triton kernels that normalise clips by the statistics of norm groups.

In: clips of any floating-point type, seen as (groups, outer, channels, inner), see ``norm_ops``. A
program takes some channels of one part of one group, tile by tile. Sums of parts are merged by the
next kernel in a fixed order, so that every run gives the same bits. Accumulators are float32, or
float64 for clips of that type.

Sizes that change with the shape of clips are no constants, so that a kernel is compiled once for
each number of channels, channels last, and not for each shape of a plan.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _offsets(outer, inner, end, c, channels, size_inner):
    """Offsets of a tile in the memory of a group, and which of them lie in the part."""
    row = outer.to(tl.int64)[:, None, None] * channels + c[None, :, None]
    inside = (outer < end)[:, None, None] & (c < channels)[None, :, None]
    return row * size_inner + inner[None, None, :], inside & (inner < size_inner)[None, None, :]


@triton.jit
def _place(outer, inner, rows, channels: tl.constexpr, CHANNELS: tl.constexpr):
    """A program's channels, group, offset of the group, and first and last row."""
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    group = tl.program_id(1)
    first = tl.program_id(2) * rows
    return (
        c,
        group,
        group.to(tl.int64) * outer * channels * inner,
        first,
        tl.minimum(first + rows, outer),
    )


@triton.jit
def _over_tile(values):
    """(outer, channels, inner) -> sums (channels)"""
    return tl.sum(tl.sum(values, 2), 0)


@triton.jit(do_not_specialize=["outer", "rows"])
def statistics_kernel(
    x,
    partials,
    outer,
    inner,
    rows,
    channels: tl.constexpr,
    OUTER: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
):
    dtype: tl.constexpr = partials.dtype.element_ty
    c, group, start, first, last = _place(outer, inner, rows, channels, CHANNELS)
    i, o = tl.arange(0, INNER), tl.arange(0, OUTER)

    offsets, inside = _offsets(first + o, i, last, c, channels, inner)
    tile = tl.load(x + start + offsets, inside, 0.0).to(dtype)
    num_first = tl.minimum(last - first, OUTER) * tl.minimum(inner, INNER)
    centre = _over_tile(tile) / num_first.to(dtype)

    total = tl.zeros((OUTER, CHANNELS, INNER), dtype)
    squares = tl.zeros((OUTER, CHANNELS, INNER), dtype)
    for o0 in range(first, last, OUTER):
        for i0 in range(0, inner, INNER):
            offsets, inside = _offsets(o0 + o, i0 + i, last, c, channels, inner)
            tile = tl.load(x + start + offsets, inside, 0.0).to(dtype)
            tile = tl.where(inside, tile - centre[None, :, None], 0.0)
            total += tile
            squares += tile * tile

    num = ((last - first) * inner).to(dtype)
    shift = _over_tile(total) / num
    deviations = tl.maximum(_over_tile(squares) - shift * shift * num, 0.0)
    size = tl.num_programs(2) * tl.num_programs(1) * channels
    place = partials + (tl.program_id(2) * tl.num_programs(1) + group) * channels + c
    tl.store(place, centre + shift, c < channels)
    tl.store(place + size, deviations, c < channels)


@triton.jit
def _some_parts(first, parts, group, c, channels: tl.constexpr, PARTS: tl.constexpr):
    """Numbers of ``PARTS`` parts of a group, their places, and which of them are there."""
    part = first + tl.arange(0, PARTS)
    place = (part[:, None] * tl.num_programs(1) + group) * channels + c[None, :]
    return part, place, (part < parts)[:, None] & (c < channels)[None, :]


@triton.jit
def _merge(
    partials,
    group,
    c,
    outer,
    inner,
    rows,
    parts,
    num_ranks,
    channels: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Mean and variance of a group, of all its parts on all ranks."""
    dtype: tl.constexpr = partials.dtype.element_ty
    all_parts = num_ranks * parts
    size = all_parts * tl.num_programs(1) * channels
    values = (outer * inner).to(dtype) * num_ranks
    mean = tl.zeros(c.shape, dtype)
    for k in range(0, all_parts, PARTS):
        part, place, inside = _some_parts(k, all_parts, group, c, channels, PARTS)
        num = (tl.minimum(outer - part % parts * rows, rows) * inner).to(dtype)[:, None]
        mean += tl.sum(tl.load(partials + place, inside, 0.0) * num, 0)
    mean /= values
    deviations = tl.zeros(c.shape, dtype)
    for k in range(0, all_parts, PARTS):
        part, place, inside = _some_parts(k, all_parts, group, c, channels, PARTS)
        num = (tl.minimum(outer - part % parts * rows, rows) * inner).to(dtype)[:, None]
        between = tl.load(partials + place, inside, 0.0) - mean[None, :]
        within = tl.load(partials + size + place, inside, 0.0)
        deviations += tl.sum(tl.where(inside, within + between * between * num, 0.0), 0)
    return mean, deviations / values


@triton.jit(do_not_specialize=["outer", "rows", "parts", "num_ranks"])
def normalise_kernel(
    x,
    out,
    partials,
    statistics,
    weight,
    bias,
    outer,
    inner,
    rows,
    parts,
    num_ranks,
    channels: tl.constexpr,
    OUTER: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    PARTS: tl.constexpr,
    eps: tl.constexpr,
):
    dtype: tl.constexpr = partials.dtype.element_ty
    c, group, start, first, last = _place(outer, inner, rows, channels, CHANNELS)
    mean, variance = _merge(
        partials, group, c, outer, inner, rows, parts, num_ranks, channels, PARTS
    )
    invstd = 1.0 / tl.sqrt(variance + eps)
    place = statistics + group * channels + c
    size = tl.num_programs(1) * channels
    if first == 0:
        tl.store(place, mean, c < channels)
        tl.store(place + size, variance, c < channels)
        tl.store(place + 2 * size, invstd, c < channels)

    scale = invstd
    if weight is not None:
        scale *= tl.load(weight + c, c < channels, 0.0).to(dtype)
    shift = tl.zeros(c.shape, dtype)
    if bias is not None:
        shift += tl.load(bias + c, c < channels, 0.0).to(dtype)
    i, o = tl.arange(0, INNER), tl.arange(0, OUTER)
    for o0 in range(first, last, OUTER):
        for i0 in range(0, inner, INNER):
            offsets, inside = _offsets(o0 + o, i0 + i, last, c, channels, inner)
            tile = tl.load(x + start + offsets, inside, 0.0).to(dtype)
            tile = (tile - mean[None, :, None]) * scale[None, :, None] + shift[None, :, None]
            tl.store(out + start + offsets, tile.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["outer", "rows"])
def gradient_sums_kernel(
    grad,
    x,
    statistics,
    sums,
    outer,
    inner,
    rows,
    channels: tl.constexpr,
    OUTER: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
):
    dtype: tl.constexpr = statistics.dtype.element_ty
    c, group, start, first, last = _place(outer, inner, rows, channels, CHANNELS)
    groups = tl.num_programs(1)
    mean = tl.load(statistics + group * channels + c, c < channels, 0.0)
    invstd = tl.load(statistics + (2 * groups + group) * channels + c, c < channels, 0.0)
    i, o = tl.arange(0, INNER), tl.arange(0, OUTER)
    of_grad = tl.zeros((OUTER, CHANNELS, INNER), dtype)
    of_products = tl.zeros((OUTER, CHANNELS, INNER), dtype)
    for o0 in range(first, last, OUTER):
        for i0 in range(0, inner, INNER):
            offsets, inside = _offsets(o0 + o, i0 + i, last, c, channels, inner)
            tile = tl.load(x + start + offsets, inside, 0.0).to(dtype)
            grads = tl.load(grad + start + offsets, inside, 0.0).to(dtype)
            of_grad += grads
            of_products += grads * (tile - mean[None, :, None])
    place = sums + (tl.program_id(2) * groups + group) * channels + c
    tl.store(place, _over_tile(of_grad), c < channels)
    size = tl.num_programs(2) * groups * channels
    tl.store(place + size, _over_tile(of_products) * invstd, c < channels)


@triton.jit
def _over_parts(sums, group, c, parts, channels: tl.constexpr, PARTS: tl.constexpr):
    """Sums of grad and of grad * normalised x over the parts of a group, (channels) each."""
    size = parts * tl.num_programs(1) * channels
    of_grad = tl.zeros(c.shape, sums.dtype.element_ty)
    of_products = tl.zeros(c.shape, sums.dtype.element_ty)
    for first in range(0, parts, PARTS):
        _, place, inside = _some_parts(first, parts, group, c, channels, PARTS)
        of_grad += tl.sum(tl.load(sums + place, inside, 0.0), 0)
        of_products += tl.sum(tl.load(sums + size + place, inside, 0.0), 0)
    return of_grad, of_products


@triton.jit(do_not_specialize=["outer", "rows", "parts", "num_ranks"])
def gradient_kernel(
    grad,
    x,
    grad_x,
    statistics,
    weight,
    sums,
    own_sums,
    of_parameters,
    outer,
    inner,
    rows,
    parts,
    num_ranks,
    channels: tl.constexpr,
    OUTER: tl.constexpr,
    CHANNELS: tl.constexpr,
    INNER: tl.constexpr,
    PARTS: tl.constexpr,
):
    dtype: tl.constexpr = statistics.dtype.element_ty
    c, group, start, first, last = _place(outer, inner, rows, channels, CHANNELS)
    groups = tl.num_programs(1)
    if group + first == 0:  # gradients of weight and bias, over all groups
        by_bias = tl.zeros(c.shape, dtype)
        by_weight = tl.zeros(c.shape, dtype)
        for k in range(groups):
            of_grad, of_products = _over_parts(own_sums, k, c, parts, channels, PARTS)
            by_bias += of_grad
            by_weight += of_products
        tl.store(of_parameters + c, by_bias, c < channels)
        tl.store(of_parameters + channels + c, by_weight, c < channels)

    mean = tl.load(statistics + group * channels + c, c < channels, 0.0)
    invstd = tl.load(statistics + (2 * groups + group) * channels + c, c < channels, 0.0)
    of_grad, of_products = _over_parts(sums, group, c, parts, channels, PARTS)
    values = (outer * inner).to(dtype) * num_ranks
    offset = of_grad / values
    slope = of_products / values * invstd
    scale = invstd
    if weight is not None:
        scale *= tl.load(weight + c, c < channels, 0.0).to(dtype)
    i, o = tl.arange(0, INNER), tl.arange(0, OUTER)
    for o0 in range(first, last, OUTER):
        for i0 in range(0, inner, INNER):
            offsets, inside = _offsets(o0 + o, i0 + i, last, c, channels, inner)
            tile = tl.load(x + start + offsets, inside, 0.0).to(dtype)
            grads = tl.load(grad + start + offsets, inside, 0.0).to(dtype)
            tile = (tile - mean[None, :, None]) * slope[None, :, None]
            tile = (grads - offset[None, :, None] - tile) * scale[None, :, None]
            tl.store(grad_x + start + offsets, tile.to(grad_x.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["groups", "values"])
def collect_kernel(pending, statistics, groups, channels, values, CHANNELS: tl.constexpr):
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    means = tl.zeros((CHANNELS,), tl.float64)
    squares = tl.zeros((CHANNELS,), tl.float64)
    for group in range(groups):
        mean = tl.load(statistics + group * channels + c, c < channels, 0.0).to(tl.float64)
        variance = tl.load(statistics + (groups + group) * channels + c, c < channels, 0.0)
        means += mean
        squares += variance.to(tl.float64) + mean * mean
    means += tl.load(pending + c, c < channels, 0.0)
    tl.store(pending + c, means, c < channels)
    squares += tl.load(pending + channels + c, c < channels, 0.0)
    tl.store(pending + channels + c, squares, c < channels)
    if tl.program_id(0) == 0:
        place = pending + 2 * channels
        tl.store(place, tl.load(place) + groups)
        tl.store(place + 1, tl.load(place + 1) + values)
