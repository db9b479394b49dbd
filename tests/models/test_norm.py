"""Sub-batch norm against a loop over groups of plain layers, in every mode and memory format."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.distributed as dist
from hypothesis import given, settings, strategies as st
from torch import Tensor, multiprocessing, nn

from tests.models import reference
from tests.models.norm_cases import GROUPS_OF_STEPS, clips, loop_over_groups, pair, run_rank
from vcycle.models import (
    SubBatchNorm3d,
    build_model,
    commit_statistics,
    convert_batch_norm,
    defer_statistics,
    set_norm_group,
)
from vcycle.models.norm_groups import normalise_across_ranks


@pytest.fixture
def undisturbed_compiler() -> Iterator[None]:
    """Nothing of other tests in a compilation: neither compiled code of theirs nor their garbage.

    What the collector finalises while code is traced is traced with it, and can make that fail.
    """
    torch.compiler.reset()
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    torch.compiler.reset()


@settings(deadline=None, max_examples=25)
@given(
    group=st.integers(1, 5),
    groups=st.integers(1, 5),
    channels=st.integers(1, 6),
    affine=st.booleans(),
    last=st.booleans(),
)
def test_equals_a_loop_over_groups_of_plain_layers(
    group: int, groups: int, channels: int, affine: bool, last: bool
) -> None:
    memory_format = torch.channels_last_3d if last else torch.contiguous_format
    ours, plain = pair(channels, affine=affine)
    ours.double(), plain.double()
    ours.norm_group = group
    x = clips(group * groups, channels).double().to(memory_format=memory_format)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = ours(a), loop_over_groups(plain, b, group)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
    close(out, expected)
    close(a.grad, b.grad)
    if affine:
        close(ours.weight.grad, plain.weight.grad)
        close(ours.bias.grad, plain.bias.grad)
    assert out.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize(("offset", "scale"), [(0, 1), (10, 1), (100, 1), (10_000, 1), (0, 1e-3)])
def test_is_as_exact_as_plain_layers(
    offset: float, scale: float, memory_format: torch.memory_format
) -> None:
    """Against double precision, on layers of a usual size, with means far from zero too."""
    torch.manual_seed(0)
    ours, plain = pair(16)
    ours.norm_group = 8
    exact = nn.BatchNorm3d(16).double()
    exact.load_state_dict(plain.state_dict())
    x = torch.randn(16, 16, 4, 14, 14) * scale + offset * torch.randn(16, 1, 1, 1)
    x = x.contiguous(memory_format=memory_format).requires_grad_()
    gradient = torch.randn_like(x)

    def results(out: Tensor, layer: nn.BatchNorm3d) -> list[Tensor]:
        inputs = (x, layer.weight, layer.bias)
        grads = torch.autograd.grad(out, inputs, gradient.to(out.dtype))
        return [out.detach(), *(grad.detach() for grad in grads)]

    of_ours = results(ours(x), ours)
    of_plain = results(loop_over_groups(plain, x, 8), plain)
    of_exact = results(loop_over_groups(exact, x.double(), 8), exact)
    for a, b, reference_value in zip(of_ours, of_plain, of_exact, strict=True):
        size = reference_value.abs().max()
        error = (a - reference_value).abs().max() / size
        allowed = (b - reference_value).abs().max() / size
        assert error <= 5 * allowed + 5e-7
        if not offset:
            assert (a - b).abs().max() <= 1e-6 * size


@pytest.mark.parametrize("shape", [(8, 56, 56), (3, 79, 79), (1, 5, 67)])
def test_a_gradient_of_one_sign_keeps_its_digits(shape: tuple[int, int, int]) -> None:
    """As global average pooling passes it back: the same for all values of a clip and channel."""
    torch.manual_seed(0)
    ours = SubBatchNorm3d(8)
    ours.norm_group = 4
    plain, exact = nn.BatchNorm3d(8), nn.BatchNorm3d(8).double()
    x = 2 * torch.randn(8, 8, *shape) + 1
    gradient = torch.randn(8, 8, 1, 1, 1).expand(x.shape)
    ours(x).backward(gradient)
    loop_over_groups(plain, x, 4).backward(gradient)
    loop_over_groups(exact, x.double(), 4).backward(gradient.double())
    for name in ("weight", "bias"):
        of_ours, of_plain, correct = (
            layer.get_parameter(name).grad.double() for layer in (ours, plain, exact)
        )
        size = correct.abs().max()
        allowed = (of_plain - correct).abs().max() / size
        assert (of_ours - correct).abs().max() / size <= 5 * allowed + 5e-7


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("group", [1, 2, 4, 8, None])
def test_running_statistics_are_those_of_one_plain_layer(
    group: int | None, momentum: float | None
) -> None:
    ours, plain = pair(3, momentum=momentum)
    set_norm_group(ours, group)
    for step in range(3):
        x = clips(8, 3, seed=step)
        ours(x), plain(x)
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-6)
    ours.eval(), plain.eval()
    torch.testing.assert_close(ours(x), plain(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_running_variances_below_eps_in_half_precision(dtype: torch.dtype) -> None:
    ours, plain = pair(3, momentum=None)
    set_norm_group(ours, 2)
    x = 1e-3 * clips(8, 3).to(dtype)
    ours(x), plain(x)
    torch.testing.assert_close(ours.running_var, plain.running_var, rtol=1e-3, atol=0)


def test_groups_that_do_not_divide_raise() -> None:
    layer = SubBatchNorm3d(2)
    set_norm_group(layer, 3)
    with pytest.raises(ValueError, match="norm_group 3: it does not divide a batch of 8 clips"):
        layer(clips(8, 2))
    layer.eval()
    layer(clips(8, 2))
    with pytest.raises(ValueError, match="at least 1"):
        set_norm_group(layer, 0)


def test_convert_keeps_parameters_and_shared_layers() -> None:
    shared = nn.BatchNorm3d(4)
    nn.init.zeros_(shared.weight)
    model = nn.Sequential(nn.Conv3d(3, 4, 1), shared, nn.Conv3d(4, 4, 1), shared).eval()
    before = list(model.parameters())
    state = {key: value.clone() for key, value in model.state_dict().items()}
    x = clips(4, 3)
    expected = model(x)
    assert convert_batch_norm(model) is model
    assert isinstance(model[1], SubBatchNorm3d)
    assert model[1] is model[3]
    assert not model[1].training
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert torch.count_nonzero(model[1].weight) == 0
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    nn.Sequential(nn.Conv3d(3, 4, 1), shared, nn.Conv3d(4, 4, 1), shared).load_state_dict(state)
    assert isinstance(convert_batch_norm(nn.BatchNorm3d(3)), SubBatchNorm3d)


def test_convert_leaves_a_model_without_batch_norm() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    layers = list(model)
    convert_batch_norm(model)
    set_norm_group(model, 8)
    assert list(model) == layers


def test_norm_group_reaches_every_layer() -> None:
    model = convert_batch_norm(build_model("resnet3d_tiny", num_classes=3))
    set_norm_group(model, 4)
    layers = [m for m in model.modules() if isinstance(m, nn.BatchNorm3d)]
    assert len(layers) > 5
    assert {layer.norm_group for layer in layers if isinstance(layer, SubBatchNorm3d)} == {4}
    assert model(torch.randn(8, 3, 4, 16, 16)).shape == (8, 3)


@pytest.mark.parametrize("splits", [2, 4, 8])
def test_against_the_authors_sub_batch_norm(splits: int) -> None:
    """Theirs takes every splits-th clip; so do we once the clips are put in that order."""
    facts = reference.read("subbn")
    expected = facts["results"][f"num_splits={splits}"]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((16, 4, 2, 3, 3), generator=generator)
    i = torch.arange(16).view(16, 1, 1, 1, 1)
    x = x * (1 + 0.5 * i / 15) + 0.25 * i
    torch.testing.assert_close(x.flatten()[:12], torch.tensor(facts["first12"]))
    layer = SubBatchNorm3d(4)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1, 1.5, 0.5, 2]))
        layer.bias.copy_(torch.tensor([0, 0.1, -0.2, 0.3]))
    set_norm_group(layer, 16 // splits)
    order = torch.tensor(expected["groups"]).flatten()
    for step, clips_of_step in enumerate((x, 0.5 * x - 1, 2 * x.flip(0))):
        out = layer(clips_of_step[order])[order.argsort()]
        first = torch.tensor(expected["first12"][step])
        torch.testing.assert_close(out.flatten()[:12], first, rtol=1e-5, atol=1e-5)
        assert out.sum().item() == pytest.approx(expected["sum"][step], rel=1e-4)
        assert out.abs().sum().item() == pytest.approx(expected["abs_sum"][step], rel=1e-6)
    plain_mean, plain_var = (torch.tensor(expected[f"running_{k}"]) for k in ("mean", "var"))
    torch.testing.assert_close(layer.running_mean, plain_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.running_var, plain_var, rtol=1e-5, atol=1e-6)
    # The authors' own aggregate differs in the unbiasing only.
    of_authors = torch.tensor(expected["aggregate_var"])
    torch.testing.assert_close(layer.running_var, of_authors, rtol=0.1, atol=0)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    """As under autocast: half-precision clips, float32 parameters; and double throughout."""
    ours, plain = pair(3)
    if dtype == torch.float64:
        ours.double(), plain.double()
    ours.norm_group = 2
    x = clips(6, 3).to(dtype).contiguous(memory_format=memory_format)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = ours(a), loop_over_groups(plain, b, 2)
    assert out.dtype == dtype
    weights = torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    tolerance = {"rtol": 1e-12, "atol": 1e-12}
    if dtype != torch.float64:
        tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": torch.finfo(dtype).eps}
    torch.testing.assert_close(out, expected, **tolerance)
    torch.testing.assert_close(a.grad, b.grad, **tolerance)
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad, rtol=1e-3, atol=1e-3)
    assert ours.running_mean.dtype == plain.running_mean.dtype


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}])
def test_half_precision_without_parameters_or_statistics(options: dict[str, bool]) -> None:
    ours, plain = pair(3, **options)
    ours.norm_group = 2
    x = clips(6, 3).bfloat16()
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = ours(a), loop_over_groups(plain, b, 2)
    torch.testing.assert_close(out, expected)
    for result in (out, expected):
        result.float().pow(3).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_autocast_as_in_a_model() -> None:
    torch.manual_seed(0)
    model = convert_batch_norm(build_model("resnet3d_tiny", num_classes=3, width=4))
    set_norm_group(model, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(torch.randn(4, 3, 4, 16, 16))
    scores.float().square().sum().backward()
    norm = model.stem_bn
    assert norm.weight.dtype == norm.running_mean.dtype == torch.float32
    assert norm.running_mean.abs().sum() > 0
    assert norm.weight.grad.isfinite().all()


def test_gradient_against_finite_differences() -> None:
    for memory_format in (torch.contiguous_format, torch.channels_last_3d):
        layer = SubBatchNorm3d(3).double()
        layer.norm_group = 2
        x = clips(4, 3)[..., :2].double().contiguous(memory_format=memory_format).requires_grad_()
        assert torch.autograd.gradcheck(layer, (x,))


def test_gradient_of_another_layout_and_of_parameters_alone() -> None:
    ours, plain = pair(3)
    ours.norm_group = 2
    x = clips(4, 3)
    for layer, out in ((ours, ours(x)), (plain, loop_over_groups(plain, x, 2))):
        weights = torch.linspace(-1, 1, out.numel()).view(3, *out.shape[2:], 4)
        (out.permute(1, 2, 3, 4, 0) * weights).sum().backward()
        assert layer.weight.grad is not None
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad)
    torch.testing.assert_close(ours.bias.grad, plain.bias.grad)


@pytest.mark.usefixtures("undisturbed_compiler")
@pytest.mark.parametrize("deferred", [False, True])
def test_compiled_equals_eager(deferred: bool) -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.ReLU())
        convert_batch_norm(model)
        if deferred:
            defer_statistics(model)
        return model

    eager, compiled_from = build(), build()
    compiled = torch.compile(compiled_from, backend="aot_eager", fullgraph=True)
    for group in (2, 4, 8, None):
        set_norm_group(eager, group)
        set_norm_group(compiled_from, group)
        x = clips(8, 3, seed=group or 0)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        out, expected = compiled(a), eager(b)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
        out.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)
        if deferred:
            commit_statistics(eager)
            commit_statistics(compiled_from)
    torch.testing.assert_close(compiled_from.state_dict(), eager.state_dict())


@pytest.mark.usefixtures("undisturbed_compiler")
def test_deferred_statistics_compile_once_per_shape() -> None:
    layer = SubBatchNorm3d(3)
    set_norm_group(layer, 2)
    defer_statistics(layer)
    graphs = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(layer, backend=graphs)
    for _ in range(3):
        for part in clips(8, 3).split(4):
            compiled(part)
        commit_statistics(layer)
    assert graphs.frame_count == 1


def test_layers_that_were_not_run_stay_as_they_are() -> None:
    model = nn.ModuleList([SubBatchNorm3d(3), SubBatchNorm3d(3, momentum=None)])
    defer_statistics(model)
    model[0](clips(4, 3))
    commit_statistics(model)
    torch.testing.assert_close(model[1].state_dict(), SubBatchNorm3d(3).state_dict())
    assert int(model[0].num_batches_tracked) == 1


def test_deferred_statistics_follow_the_model_to_a_device() -> None:
    layer = SubBatchNorm3d(3)
    defer_statistics(layer)
    layer.half()
    assert layer._pending is not None
    assert layer._pending.dtype == torch.float64
    assert layer.to("meta")._pending.device.type == "meta"


def test_micro_batches_give_the_statistics_of_the_whole_batch() -> None:
    """Two steps, each of 8 clips in micro-batches of 4, against one plain layer."""
    ours, plain = pair(3)
    set_norm_group(ours, 2)
    defer_statistics(ours)
    for step in range(2):
        x = clips(8, 3, seed=step)
        outs = [ours(part) for part in x.split(4)]
        plain(x)
        assert int(ours.num_batches_tracked) == step
        commit_statistics(ours)
        commit_statistics(ours)
        torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-6)
    expected = loop_over_groups(plain, x, 2)
    torch.testing.assert_close(torch.cat(outs), expected, rtol=1e-5, atol=1e-5)


def test_groups_that_span_processes(tmp_path: Path) -> None:
    """4 processes of 2 clips each: groups in one process, in two of them and in all four."""
    multiprocessing.start_processes(run_rank, args=(tmp_path,), nprocs=4, start_method="spawn")
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(4)]
    torch.manual_seed(0)
    _, plain = pair(3)
    statistics = nn.BatchNorm3d(3)
    for step, group in enumerate(GROUPS_OF_STEPS):
        x = clips(8, 3, seed=step).requires_grad_()
        out = loop_over_groups(plain, x, group)
        (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum().backward()
        statistics(x)
        for key, expected in (("out", out), ("grad", x.grad)):
            parts = torch.cat([rank[key][step] for rank in ranks])
            torch.testing.assert_close(parts, expected, rtol=1e-5, atol=1e-5)
    for key, expected in (("weight", plain.weight.grad), ("bias", plain.bias.grad)):
        total = sum(rank[key] for rank in ranks)
        torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)
    one_step = nn.BatchNorm3d(3)
    one_step(clips(8, 3))
    for rank in ranks:
        torch.testing.assert_close(rank["at_once"], dict(one_step.state_dict()))
        for key in ("running_mean", "running_var", "num_batches_tracked"):
            torch.testing.assert_close(rank["state"][key], statistics.state_dict()[key])
        every = torch.cat([clips(8, 3, seed=step) for step in range(2)])
        mean, var = rank["precise"]
        torch.testing.assert_close(mean, every.mean((0, 2, 3, 4)))
        torch.testing.assert_close(var, every.var((0, 2, 3, 4)))


@pytest.mark.usefixtures("undisturbed_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, at a graph break
def test_the_exchange_runs_beside_compiled_code(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        _, plain = pair(3)
        x = clips(8, 3)

        def function(x: Tensor) -> Tensor:
            y = 2 * x
            out, *_ = normalise_across_ranks(y, plain.weight, plain.bias, num_ranks=1, eps=1e-5)
            return out + 1

        out = torch.compile(function, backend="eager")(x)
        torch.testing.assert_close(out, plain(2 * x) + 1, rtol=1e-5, atol=1e-5)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("affine", [False, True])
def test_processes_exchange_in_any_precision(
    tmp_path: Path, dtype: torch.dtype, affine: bool
) -> None:
    file = tmp_path / "store"
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    try:
        ours, plain = pair(3, affine=affine)
        x = clips(8, 3).to(dtype).requires_grad_()
        ours.to(dtype)
        out, *_ = normalise_across_ranks(x, ours.weight, ours.bias, num_ranks=1, eps=1e-5)
        out.float().square().sum().backward()
        assert out.dtype == dtype
        close = 0.05 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(out.float(), plain(x.detach().float()), rtol=close, atol=close)
        if affine:
            assert ours.weight.grad is not None
            assert ours.weight.grad.dtype == dtype
    finally:
        dist.destroy_process_group()


def test_wrong_numbers_of_channels_and_of_values_raise() -> None:
    for track in (True, False):
        layer = SubBatchNorm3d(4, track_running_stats=track)
        set_norm_group(layer, 2)
        for x in (clips(8, 1), clips(8, 3).to(memory_format=torch.channels_last_3d)):
            with pytest.raises(ValueError, match=f"4 channels: the input has {x.shape[1]}"):
                layer(x)
    set_norm_group(layer, 1)
    with pytest.raises(ValueError, match="one value per channel"):
        layer(torch.rand(8, 4, 1, 1, 1))


def test_a_group_larger_than_the_batch_needs_processes() -> None:
    layer = SubBatchNorm3d(2)
    set_norm_group(layer, 16)
    with pytest.raises(ValueError, match="norm_group 16: it does not divide a batch of 8 clips"):
        layer(clips(8, 2))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[..., ::2],
        lambda x: x[..., :7],
        lambda x: x[:, :4],
        lambda x: x[::2],
        lambda x: x[:, :, ::2],
        lambda x: x.transpose(3, 4),
        lambda x: x.transpose(2, 4),
        lambda x: x[:, :, :1].expand(-1, -1, 3, -1, -1),
    ],
)
def test_views_of_any_layout_equal_a_loop_over_groups(view: Any) -> None:
    x = view(torch.randn(8, 8, 4, 8, 8, generator=torch.Generator().manual_seed(0)))
    ours, plain = pair(x.shape[1], affine=True)
    ours.norm_group = 2
    torch.testing.assert_close(ours(x), loop_over_groups(plain, x, 2), rtol=1e-5, atol=1e-5)
    grads = []
    for layer in (lambda y: ours(y), lambda y: loop_over_groups(plain, y, 2)):
        base = torch.randn(8, 8, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        base.requires_grad_()
        (layer(view(base)) * view(base).detach().sin()).sum().backward()
        grads.append(base.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 3, 2, 4, 4), (0, 3, 1, 1, 1), (4, 3, 0, 4, 4)])
@pytest.mark.parametrize("group", [2, None])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("training", [True, False])
def test_an_empty_batch_does_what_it_does_to_a_plain_layer(
    shape: tuple[int, ...], group: int | None, momentum: float | None, training: bool
) -> None:
    for layer in (ours_and_plain := pair(3, momentum=momentum)):
        layer.train(training)
        x = torch.zeros(shape, requires_grad=True)
        if isinstance(layer, SubBatchNorm3d):
            layer.norm_group = group
        out = layer(x)
        assert out.shape == shape
        out.sum().backward()
        assert x.grad is not None
    ours, plain = ours_and_plain
    torch.testing.assert_close(ours.weight.grad, plain.weight.grad)
    torch.testing.assert_close(ours.bias.grad, plain.bias.grad)
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("group", [2, None])
def test_an_empty_micro_batch_adds_nothing(group: int | None) -> None:
    ours, plain = pair(3)
    set_norm_group(ours, group)
    defer_statistics(ours)
    x = clips(4, 3)
    ours(x), plain(x)
    assert ours(x[:0]).shape == x[:0].shape
    assert ours(x[:, :, :0]).shape == x[:, :, :0].shape
    commit_statistics(ours)
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_a_converted_model_is_traced_as_a_plain_one(training: bool) -> None:
    def build() -> nn.Module:
        block = nn.Sequential(nn.Conv3d(3, 3, 1), nn.BatchNorm3d(3), nn.ReLU())
        return nn.Sequential(block, nn.BatchNorm3d(3)).train(training)

    model = convert_batch_norm(build())
    traced, plain = torch.fx.symbolic_trace(model), torch.fx.symbolic_trace(build())
    steps = [[(node.op, node.target) for node in m.graph.nodes] for m in (traced, plain)]
    assert steps[0] == steps[1]
    set_norm_group(traced, 2)
    assert model[1].norm_group == 2
    x = clips(4, 3)
    torch.testing.assert_close(traced(x), model(x), rtol=0, atol=0)


def test_evaluation_knows_no_groups() -> None:
    layer = convert_batch_norm(nn.BatchNorm3d(3, track_running_stats=False)).eval()
    set_norm_group(layer, 8)
    x = clips(4, 3)  # no multiple of the group
    torch.testing.assert_close(layer(x), nn.BatchNorm3d(3, track_running_stats=False)(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_modules_in_half_precision(dtype: torch.dtype) -> None:
    layer = convert_batch_norm(nn.BatchNorm3d(3)).to(dtype)
    set_norm_group(layer, 2)
    x = clips(4, 3).to(dtype)
    out = layer(x)
    assert out.dtype == dtype
    expected = loop_over_groups(nn.BatchNorm3d(3), x.float(), 2)
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)


def collected() -> SubBatchNorm3d:
    """A layer that collected the statistics of a forward pass, and applied none."""
    layer = SubBatchNorm3d(3)
    defer_statistics(layer)
    layer(torch.randn(4, 3, 2, 2, 2))
    return layer


def test_a_state_that_is_loaded_ends_what_was_collected_before() -> None:
    layer, state = collected(), SubBatchNorm3d(3).state_dict()
    layer.load_state_dict({}, strict=False)
    assert layer._pending is not None
    assert bool(layer._pending.any())
    layer(torch.full((4, 3, 2, 2, 2), torch.nan))
    layer.load_state_dict(state)
    commit_statistics(layer)
    for name, value in layer.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_defers_nothing(copied: Any) -> None:
    """As no optimizer commits what it collects."""
    layer, plain, x = collected(), nn.BatchNorm3d(3), torch.randn(4, 3, 2, 2, 2)
    own = copied(layer)
    for each in (own, plain):
        each(x)
    torch.testing.assert_close(own.running_mean, plain.running_mean)
    assert own.num_batches_tracked == 1
    assert layer.num_batches_tracked == 0
    commit_statistics(layer)
    assert layer.num_batches_tracked == 1


def test_statistics_that_torch_estimates_anew_are_those_of_plain_layers() -> None:
    batches = [torch.randn(4, 3, 2, 2, 2) for _ in range(3)]
    layer, plain = collected(), nn.BatchNorm3d(3)
    with pytest.warns(UserWarning, match="no longer deferred; call vcycle.defer_statistics"):
        torch.optim.swa_utils.update_bn(batches, layer)
    torch.optim.swa_utils.update_bn(batches, plain)
    torch.testing.assert_close(layer.running_var, plain.running_var)
    assert layer.num_batches_tracked == 3
