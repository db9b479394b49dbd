"""Norm groups by a constant number of operations: on CPU tensors, on meta, and as GPU kernels."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models.norm_cases import clips, loop_over_groups, pair
from tests.models.norm_kernel_cases import arguments
from vcycle.models import (
    SubBatchNorm3d,
    commit_statistics,
    convert_batch_norm,
    defer_statistics,
    norm_ops,
    set_norm_group,
)
from vcycle.models.norm_groups import NormaliseGroups

FORMATS = [torch.contiguous_format, torch.channels_last_3d]
OPERATIONS = ("partial_statistics", "normalise", "gradient_sums", "gradient", "collect")


def normalise(layer: nn.BatchNorm3d, x: Tensor, norm_group: int) -> Tensor:
    """Not as the layer does on a CPU, but as on any other device."""
    out: Tensor
    out, _ = NormaliseGroups.apply(x, layer.weight, layer.bias, norm_group, layer.eps, None)
    return out


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-9), (torch.bfloat16, 0.01)]
)
@pytest.mark.parametrize("group", [1, 3, 6])
def test_equals_a_loop_over_groups_of_plain_layers(
    group: int,
    dtype: torch.dtype,
    tolerance: float,
    affine: bool,
    memory_format: torch.memory_format,
) -> None:
    torch.manual_seed(1)
    layer, _ = pair(5, affine=affine)
    exact = nn.BatchNorm3d(5, affine=affine)
    exact.load_state_dict(layer.state_dict())
    exact.double()
    if dtype == torch.float64:
        layer.double()
    x = clips(6, 5).to(dtype).contiguous(memory_format=memory_format)
    a, b = x.clone().requires_grad_(), x.double().requires_grad_()
    out, expected = normalise(layer, a, group), loop_over_groups(exact, b, group)
    gradient = torch.randn_like(x)
    out.backward(gradient)
    expected.backward(gradient.double())
    assert out.dtype == a.grad.dtype == dtype
    assert out.stride() == x.stride()
    results = [(out, expected), (a.grad, b.grad)]
    if affine:
        results += [(layer.weight.grad, exact.weight.grad), (layer.bias.grad, exact.bias.grad)]
    for result, correct in results:
        assert (result.double() - correct).abs().max() <= tolerance * correct.abs().max()


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (100, 1), (10_000, 1), (0, 1e-3)])
def test_keeps_its_digits_if_means_are_far_from_zero(
    offset: float, scale: float, memory_format: torch.memory_format
) -> None:
    torch.manual_seed(0)
    layer, _ = pair(8)
    exact = nn.BatchNorm3d(8).double()
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(8, 8, 4, 14, 14) * scale + offset * torch.randn(8, 8, 1, 1, 1)
    x = x.contiguous(memory_format=memory_format)
    out = normalise(layer, x, 4)
    plain = nn.BatchNorm3d(8)
    plain.load_state_dict(layer.state_dict())
    loop = loop_over_groups(plain, x, 4)
    correct = loop_over_groups(exact, x.double(), 4)
    size = correct.abs().max()
    allowed = (loop - correct).abs().max() / size
    assert (out - correct).abs().max() / size <= 5 * allowed + 5e-7


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("affine", [True, False])
def test_gradients_against_finite_differences(
    affine: bool, memory_format: torch.memory_format
) -> None:
    torch.manual_seed(0)
    x = clips(4, 3)[..., :2].double().contiguous(memory_format=memory_format).requires_grad_()
    parameters: tuple[Any, ...] = (None, None)
    if affine:
        parameters = tuple(torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in "wb")

    def function(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        out: Tensor = NormaliseGroups.apply(x, weight, bias, 2, 1e-5, None)[0]
        return out

    assert torch.autograd.gradcheck(function, (x, *parameters))


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_keep_what_their_schemas_promise(
    name: str, dtype: torch.dtype, memory_format: torch.memory_format
) -> None:
    """Nothing else is written to, and results on meta have the shapes and strides of real ones."""
    x = clips(4, 3).to(dtype).contiguous(memory_format=memory_format)
    weight = torch.rand(3, dtype=torch.promote_types(dtype, torch.float32))
    operation = getattr(norm_ops.ops, name).default
    torch.library.opcheck(
        operation,
        arguments(x, torch.randn_like(x), norm_ops, 2, weight)[name],
        test_utils=("test_schema", "test_faketensor"),
    )


class Operations(TorchDispatchMode):
    """Counts operations that compute something: no views, no allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        returns = function._schema.returns
        is_view = any(each.alias_info and not each.alias_info.is_write for each in returns)
        if not is_view and "empty" not in function.__name__:
            self.names[function.__name__] += 1
        return function(*args, **(kwargs or {}))


def count(run: Callable[[], object]) -> int:
    with Operations() as operations:
        run()
    return operations.names.total()


@pytest.mark.parametrize("memory_format", FORMATS)
def test_the_number_of_operations_does_not_depend_on_that_of_groups(
    memory_format: torch.memory_format,
) -> None:
    layer = SubBatchNorm3d(3, device="meta")  # meta tensors take the way of those on a GPU
    defer_statistics(layer)
    on_meta = torch.empty(16, 3, 2, 4, 4, device="meta", requires_grad=True)
    on_meta = on_meta.contiguous(memory_format=memory_format)

    def on_gpu(group: int) -> None:
        set_norm_group(layer, group)
        out = layer(on_meta)
        torch.autograd.grad(out, (on_meta, *layer.parameters()), torch.empty_like(out))

    def elsewhere(group: int) -> None:
        x = torch.ones(16, 3, 2, 4, 4).contiguous(memory_format=memory_format)
        for name, given in arguments(x, x, norm_ops, group, torch.ones(3)).items():
            getattr(norm_ops, name)(*given)

    for run, most in ((on_gpu, 5), (elsewhere, 100)):
        counts = [count(lambda run=run, g=g: run(g)) for g in (1, 2, 8, 16)]
        assert max(counts) == min(counts) <= most


def test_the_number_of_operations_of_a_commit_does_not_depend_on_that_of_layers() -> None:
    counts = []
    for num_layers in (1, 2, 20):
        model = nn.Sequential(*(nn.BatchNorm3d(3) for _ in range(num_layers)))
        convert_batch_norm(model)
        set_norm_group(model, 2)
        defer_statistics(model)
        model(clips(8, 3))
        commit_statistics(model)  # which finds once where each channel's statistics lie
        counts.append(count(lambda model=model: commit_statistics(model)))
    assert counts == [19, 19, 19]


def test_layers_left_out_or_in_another_order_commit_what_they_collected() -> None:
    """By another model than the one whose statistics were deferred."""
    sizes = (3, 5, 2)
    results = []
    for change in ("none", "reversed", "fewer"):
        layers = [SubBatchNorm3d(size) for size in sizes]
        model = nn.ModuleList(layers)
        set_norm_group(model, 2)
        defer_statistics(model)
        if change == "reversed":
            model = nn.ModuleList(layers[::-1])
        if change == "fewer":
            model = nn.ModuleList([*layers[1:], SubBatchNorm3d(4)])
        for _ in range(2):
            for layer in layers:
                layer(clips(4, layer.num_features))
            commit_statistics(model)
        assert not any(layer._pending.any() for layer in model if layer._pending is not None)
        lacks = pytest.warns(UserWarning, match="lacks the norm statistics of the last step")
        with lacks if change == "fewer" else nullcontext():  # of the layer that was left out
            results.append([layer.state_dict() for layer in layers])
    whole, reversed_, fewer = results
    torch.testing.assert_close(reversed_, whole, rtol=0, atol=0)
    torch.testing.assert_close(fewer[1:], whole[1:], rtol=0, atol=0)
    assert fewer[0]["num_batches_tracked"] == 0


def test_layers_of_different_momentum_precision_and_use_commit_together() -> None:
    options: list[dict[str, Any]] = [{}, {"momentum": 0.3}, {"momentum": None}, {"eps": 1e-3}]
    plain = [nn.BatchNorm3d(3, **each) for each in options]
    plain[3].double()
    model = nn.ModuleList([SubBatchNorm3d(3, **each) for each in options])
    model[3].double()
    set_norm_group(model, 4)
    defer_statistics(model)
    for step in range(3):
        for i, (ours, theirs) in enumerate(zip(model, plain, strict=True)):
            if (step, i) != (1, 0):
                x = clips(4, 3, seed=step).to(ours.weight.dtype)
                ours(x), theirs(x)
        commit_statistics(model)
    for ours, theirs in zip(model, plain, strict=True):
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_gpu_kernels_compute_the_same() -> None:
    """By Triton's interpreter on CPU tensors, which a process has to ask for before it starts."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.models.norm_kernel_cases"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this Triton's interpreter does not work with this NumPy")
    assert done.returncode == 0, done.stderr


KERNELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "statistics_kernel": (("x",), ("partials",)),
    "normalise_kernel": (("x", "out"), ("partials", "statistics", "weight", "bias")),
    "gradient_sums_kernel": (("grad", "x"), ("statistics", "sums")),
    "gradient_kernel": (
        ("grad", "x", "grad_x"),
        ("statistics", "weight", "sums", "own_sums", "of_parameters"),
    ),
}
"""Their tensors in the precision of clips, and in that of sums."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_for_gpus(name: str, capability: int) -> None:
    """The real compiler, for GPUs that need not be there."""
    triton = pytest.importorskip("triton")
    compiler = importlib.import_module("triton.backends.compiler")
    kernel = getattr(importlib.import_module("vcycle.models.norm_kernels"), name)
    clips, sums = KERNELS[name]
    types = dict.fromkeys(clips, "*bf16") | dict.fromkeys(sums, "*fp32")
    types |= dict.fromkeys(("outer", "inner", "rows", "parts", "num_ranks"), "i32")
    constants = {"channels": 64, "OUTER": 128, "CHANNELS": 32, "INNER": 1, "PARTS": 32, "eps": 1e-5}
    constants = {each: constants[each] for each in kernel.arg_names if each in constants}
    signature = {each: types.get(each, "constexpr") for each in kernel.arg_names}
    source = triton.compiler.ASTSource(kernel, signature=signature, constexprs=constants)
    target = compiler.GPUTarget("cuda", capability, 32)
    assert triton.compile(source, target=target).asm["cubin"]


def test_kernels_are_compiled_for_channels_and_not_for_shapes() -> None:
    pytest.importorskip("triton")
    cut = importlib.import_module("vcycle.models.norm_triton")._cut_memory
    batches = [((128, 64, 2, 28, 28), 16), ((64, 64, 2, 40, 40), 8), ((8, 64, 8, 56, 56), 8)]
    constants = [cut(torch.Size(dims), True, group).constants for dims, group in batches]
    assert constants[0] == constants[1] == constants[2]
    sizes = {"outer", "rows", "parts", "num_ranks", "groups", "values"}  # these change
    kernels = importlib.import_module("vcycle.models.norm_kernels")
    for name in (*KERNELS, "collect_kernel"):
        parameters = getattr(kernels, name).params
        changing = [each for each in parameters if each.name in sizes]
        assert changing
        assert all(each.do_not_specialize for each in changing)
