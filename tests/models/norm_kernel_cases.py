"""The GPU's kernels beside the operations of torch that define them, in Triton's interpreter.

TRITON_INTERPRET=1 python -m tests.models.norm_kernel_cases
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vcycle.models import norm_ops

CONTIGUOUS, LAST = torch.contiguous_format, torch.channels_last_3d
CASES = [
    ((4, 40, 2, 7, 7), 4, LAST, torch.float32),
    ((4, 40, 2, 7, 7), 2, CONTIGUOUS, torch.float32),
    ((8, 3, 4, 17, 17), 8, CONTIGUOUS, torch.float32),
    ((8, 3, 4, 17, 17), 4, LAST, torch.bfloat16),
    ((4, 2, 8, 9, 9), 1, CONTIGUOUS, torch.bfloat16),
    ((6, 33, 1, 3, 3), 3, LAST, torch.float64),
    ((2, 1, 1, 40, 40), 1, LAST, torch.float64),
]
"""Shapes, clips of a group, memory format and type; none fits its tiles, some are cut in parts."""
TOLERANCES = {torch.float64: 1e-11, torch.float32: 3e-5, torch.bfloat16: 0.01}


def arguments(
    x: Tensor, gradient: Tensor, module: Any, norm_group: int, weight: Tensor | None
) -> dict[str, tuple[Any, ...]]:
    """Arguments of every operation, from the results of those before it."""
    partials = module.partial_statistics(x, norm_group)
    first = (x, partials, weight, weight, norm_group, 1, 1e-5)
    _, statistics = module.normalise(*first)
    sums = module.gradient_sums(gradient, x, statistics, norm_group)
    pending = x.new_ones(2 * x.shape[1] + 2, dtype=torch.float64)
    return {
        "partial_statistics": (x, norm_group),
        "normalise": first,
        "gradient_sums": (gradient, x, statistics, norm_group),
        "gradient": (gradient, x, statistics, weight, sums, sums, norm_group, 1),
        "collect": (pending, statistics, x.numel() // x.shape[1]),
    }


def check_all_operations(
    kernels: Any,
    dims: tuple[int, ...],
    group: int,
    memory_format: torch.memory_format,
    dtype: torch.dtype,
    affine: bool,
) -> None:
    """The results of one kernel after the other; parts are merged by what follows them."""
    x = torch.randn(dims) + 10 * torch.randn(dims[0], dims[1], 1, 1, 1)
    x = x.to(dtype).contiguous(memory_format=memory_format)
    gradient = torch.randn_like(x)
    wide = torch.promote_types(dtype, torch.float32)
    weight = torch.rand(dims[1], dtype=wide) + 0.5 if affine else None
    of_torch = arguments(x, gradient, norm_ops, group, weight)
    for name, given in arguments(x, gradient, kernels, group, weight).items():
        expected = getattr(norm_ops, name)(*of_torch[name])
        results = getattr(kernels, name)(*given)
        if name == "collect":
            expected, results = (of_torch[name][0],), (given[0],)
        if name in ("normalise", "gradient", "collect"):
            for result, correct in zip(results, expected, strict=True):
                check_close(result, correct, tolerance=TOLERANCES[dtype], name=name)


def check_close(result: Tensor, correct: Tensor, *, tolerance: float, name: str) -> None:
    """Equal in type, layout and, up to a share of the largest value, in value."""
    assert result.dtype == correct.dtype, name
    assert result.stride() == correct.stride(), name
    error = (result.double() - correct.double()).abs().max()
    assert error <= tolerance * correct.double().abs().max(), (name, float(error))


def check_two_ranks(kernels: Any) -> None:
    """Halves of one group on two ranks, their partial results exchanged by hand."""
    halves, gradient = torch.randn(2, 8, 5, 2, 11, 11).add_(3), torch.randn(16, 5, 2, 11, 11)
    whole = arguments(halves.flatten(0, 1), gradient, norm_ops, 16, None)
    partials = torch.cat([kernels.partial_statistics(half, 8) for half in halves], 1)
    normalised = [kernels.normalise(half, partials, None, None, 8, 2, 1e-5) for half in halves]
    out, statistics = norm_ops.normalise(*whole["normalise"])
    of_halves = torch.cat([each for each, _ in normalised])
    check_close(of_halves, out, tolerance=1e-5, name="two ranks: normalise")
    pairs = list(zip(gradient.split(8), halves, strict=True))
    sums = [kernels.gradient_sums(grad, half, normalised[0][1], 8) for grad, half in pairs]
    grads = [
        kernels.gradient(grad, half, normalised[0][1], None, sums[0] + sums[1], own, 8, 2)
        for (grad, half), own in zip(pairs, sums, strict=True)
    ]
    grad_x, of_parameters = norm_ops.gradient(*whole["gradient"])
    of_halves = torch.cat([each for each, _ in grads])
    check_close(of_halves, grad_x, tolerance=1e-5, name="two ranks: gradient")
    total = grads[0][1] + grads[1][1]
    check_close(total, of_parameters, tolerance=1e-5, name="two ranks: parameters")
    check_close(normalised[0][1], statistics, tolerance=1e-5, name="two ranks: statistics")


def main() -> None:
    """Check all cases; raises AssertionError."""
    from vcycle.models import norm_triton

    torch.manual_seed(1)
    for parts in (norm_triton._PARTS, 2):  # that a program adds up at a time: all, or some
        norm_triton._PARTS = parts
        for case in CASES:
            for affine in (True, False):
                check_all_operations(norm_triton, *case, affine)
        check_two_ranks(norm_triton)


if __name__ == "__main__":
    main()
