"""Convolutions of short clips: those of torch, and what they leave to it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vcycle.models import build_model, convert_convolutions
from vcycle.models.count import multiply_adds
from vcycle.models.short_clips import ShortClipConv3d
from vcycle.schedule.shape import Shape

FORMATS = [torch.contiguous_format, torch.channels_last_3d]
LAYERS: list[dict[str, Any]] = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (3, 1, 1), "padding": (1, 0, 0), "bias": False},
    {"kernel_size": (5, 7, 7), "padding": (2, 3, 3), "stride": (1, 2, 2)},
    {"kernel_size": (3, 3, 3), "padding": (2, 1, 0)},
    {"kernel_size": (5, 3, 3), "padding": (2, 2, 2), "dilation": (1, 2, 2)},
    {"kernel_size": (4, 1, 3), "padding": (3, 0, 1), "bias": False},
]
LEFT_TO_TORCH: list[dict[str, Any]] = [
    {"kernel_size": 3, "padding": 1, "groups": 4, "bias": False},
    {"kernel_size": (3, 1, 1), "padding": (1, 0, 0), "stride": (2, 1, 1)},
    {"kernel_size": (5, 1, 1), "padding": (4, 0, 0), "dilation": (2, 1, 1)},
    {"kernel_size": 3, "padding": "same"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "replicate"},
]


def gradients(layer: nn.Module, clips: Tensor) -> list[Tensor]:
    """The result, and the gradients of the clips and the parameters."""
    clips = clips.clone(memory_format=torch.preserve_format).requires_grad_()
    out = layer(clips)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    return [out, *torch.autograd.grad((out * weights).sum(), [clips, *layer.parameters()])]


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("frames", [1, 2, 3, 4])
@pytest.mark.parametrize("options", LAYERS)
def test_equals_torch(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    frames: int,
    memory_format: torch.memory_format,
) -> None:
    torch.manual_seed(0)
    plain = nn.Conv3d(3, 5, **options).double().to(memory_format=memory_format)  # type: ignore[call-overload]
    clips = torch.randn(2, 3, frames, 9, 8, dtype=torch.float64)
    clips = clips.contiguous(memory_format=memory_format)
    expected = gradients(plain, clips)
    ours = convert_convolutions(copy.deepcopy(plain))
    assert type(ours) is ShortClipConv3d
    if frames < plain.kernel_size[0]:
        monkeypatch.delattr(torch, "conv3d")  # it is not what computes them
        monkeypatch.delattr(torch.nn.functional, "conv3d")
    torch.testing.assert_close(gradients(ours, clips), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("frames", [1, 2, 3, 4])
@pytest.mark.parametrize("options", [*LAYERS, *LEFT_TO_TORCH])
@pytest.mark.parametrize("is_mixed", [False, True])
def test_in_bfloat16_results_and_gradients_are_those_of_float32(
    options: dict[str, Any], frames: int, memory_format: torch.memory_format, is_mixed: bool
) -> None:
    """Those of torch's own layer are not, on some CPUs."""
    torch.manual_seed(0)
    plain = nn.Conv3d(4, 8, **options).to(memory_format=memory_format)  # type: ignore[call-overload]
    for parameter in plain.parameters():
        parameter.data = parameter.data.bfloat16().float()  # whose rounding is no error
    clips = torch.randn(2, 4, frames, 9, 8).bfloat16().contiguous(memory_format=memory_format)
    expected = gradients(plain, clips.float())
    ours = convert_convolutions(copy.deepcopy(plain))
    if is_mixed:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = gradients(ours, clips.float())
    else:
        found = gradients(ours.bfloat16(), clips)
    assert found[0].dtype == torch.bfloat16
    for ours_, theirs in zip(found, expected, strict=True):
        assert (ours_ - theirs).norm() <= 0.02 * theirs.norm()


def test_what_would_train_wrongly_is_computed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the CPU; not without gradients, of long clips, or in float64."""
    found: list[torch.dtype] = []
    convolve = nn.Conv3d._conv_forward

    def noted(layer: nn.Conv3d, clips: Tensor, *others: Any) -> Tensor:
        found.append(clips.dtype)
        return convolve(layer, clips, *others)

    monkeypatch.setattr(nn.Conv3d, "_conv_forward", noted)
    layer = convert_convolutions(nn.Conv3d(4, 4, 3, padding=1, groups=2)).bfloat16()
    clips = torch.randn(2, 4, 2, 5, 5)
    layer(clips.bfloat16())
    layer(torch.randn(2, 4, 3, 5, 5).bfloat16())
    with torch.no_grad():
        layer(clips.bfloat16())
    assert found == [torch.float32, torch.bfloat16, torch.bfloat16]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.double()(clips.double()).dtype == torch.float64


def test_an_export_in_bfloat16_is_bound_to_no_number_of_frames() -> None:
    layer = convert_convolutions(nn.Conv3d(4, 4, 3, padding=1)).bfloat16()
    frames = {2: torch.export.Dim("frames", min=1, max=32)}
    clips = torch.randn(2, 4, 4, 5, 5).bfloat16()
    exported = torch.export.export(layer, (clips,), dynamic_shapes=(frames,)).module()
    for number in (1, 2, 8):
        clips = torch.randn(2, 4, number, 5, 5).bfloat16()
        assert exported(clips).shape == (2, 4, number, 5, 5)


def test_a_compiled_layer_trains_in_bfloat16_as_another_does() -> None:
    torch.manual_seed(0)
    plain = nn.Conv3d(16, 16, 3, padding=1, bias=False)
    clips = torch.randn(4, 16, 2, 8, 8)
    expected = gradients(plain, clips)
    ours = torch.compile(convert_convolutions(copy.deepcopy(plain)), backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gradients(ours, clips)
    for ours_, theirs in zip(found, expected, strict=True):
        assert (ours_ - theirs).norm() <= 0.02 * theirs.norm()


def memories() -> dict[str, Tensor]:
    """Short clips as they may lie in memory."""
    clips, one = torch.randn(2, 3, 2, 9, 8), torch.randn(2, 1, 2, 9, 8)
    last = clips.contiguous(memory_format=torch.channels_last_3d)
    long = torch.randn(2, 3, 8, 9, 8).contiguous(memory_format=torch.channels_last_3d)
    return {
        "contiguous": clips,
        "channels last": last,
        "one frame": last[:, :, :1].contiguous(memory_format=torch.channels_last_3d),
        "one contiguous frame": clips[:, :, :1].contiguous(),
        "one contiguous channel": one,
        "every fourth frame": long[:, :, ::4],
    }


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("name", memories())
def test_results_lie_in_memory_as_torchs_do(name: str, memory_format: torch.memory_format) -> None:
    clips = memories()[name]
    plain = nn.Conv3d(clips.shape[1], 5, 3, padding=1)
    plain.to(memory_format=memory_format)  # type: ignore[call-overload]
    ours = convert_convolutions(copy.deepcopy(plain))
    out, expected = ours(clips), plain(clips)
    assert out.stride() == expected.stride()
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert out._base is None  # it is no view


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1, "stride": 2},
        {"kernel_size": 3, "padding": 2, "dilation": 2},
        {"kernel_size": 3, "padding": 1, "groups": 2},
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        {"kernel_size": (5, 1, 1), "padding": (2, 0, 0), "stride": (2, 1, 1)},
    ],
)
def test_other_convolutions_are_left_to_torch(options: dict[str, Any]) -> None:
    plain = nn.Conv3d(4, 6, **options)
    clips = torch.randn(2, 4, 2, 8, 8)
    ours = convert_convolutions(copy.deepcopy(plain))
    for result, expected in zip(gradients(ours, clips), gradients(plain, clips), strict=True):
        assert torch.equal(result, expected)


def test_a_clip_that_no_kernel_fits_is_refused_as_by_torch() -> None:
    ours = convert_convolutions(nn.Conv3d(3, 4, 3))
    with pytest.raises(RuntimeError, match=r"[Kk]ernel size can't be greater"):
        ours(torch.randn(1, 3, 2, 8, 8))


def test_an_empty_batch_passes() -> None:
    ours = convert_convolutions(nn.Conv3d(3, 4, 3, padding=1))
    assert ours(torch.randn(0, 3, 2, 8, 8)).shape == (0, 4, 2, 8, 8)


def test_a_clip_without_a_batch_is_left_to_torch() -> None:
    plain = nn.Conv3d(3, 4, 3, padding=1)
    clip = torch.randn(3, 9, 2, 8)
    torch.testing.assert_close(convert_convolutions(copy.deepcopy(plain))(clip), plain(clip))


@pytest.mark.parametrize("memory_format", FORMATS)
@pytest.mark.parametrize("name", ["resnet3d_tiny", "slowfast_tiny"])
@pytest.mark.parametrize("shape", [(2, 48, 48), (4, 32, 32)])
def test_models_train_as_before(
    name: str, shape: tuple[int, int, int], memory_format: torch.memory_format
) -> None:
    torch.manual_seed(0)
    plain = build_model(name, num_classes=5, dropout=0.0).double()
    plain.to(memory_format=memory_format)  # type: ignore[call-overload]
    ours = convert_convolutions(copy.deepcopy(plain))
    assert list(ours.state_dict()) == list(plain.state_dict())
    clips = torch.randn(4, 3, *shape, dtype=torch.float64).contiguous(memory_format=memory_format)
    torch.testing.assert_close(
        gradients(ours, clips), gradients(plain, clips), rtol=1e-9, atol=1e-9
    )


def test_multiply_adds_are_those_of_the_plain_model() -> None:
    plain = build_model("resnet3d_tiny", num_classes=5)
    ours = convert_convolutions(copy.deepcopy(plain))
    shape = Shape(2, 48, 48)
    assert multiply_adds(ours, shape) == multiply_adds(plain, shape)


def test_a_parametrized_kernel_is_made_once() -> None:
    calls = []

    class Scaled(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            calls.append(1)
            return 2 * weight

    plain = nn.Conv3d(3, 4, 3, padding=1)
    ours = convert_convolutions(copy.deepcopy(plain))
    nn.utils.parametrize.register_parametrization(plain, "weight", Scaled())
    nn.utils.parametrize.register_parametrization(ours, "weight", Scaled())
    calls.clear()
    clips = torch.randn(2, 3, 2, 8, 8)
    out = ours(clips)
    assert len(calls) == 1
    torch.testing.assert_close(out, plain(clips), rtol=1e-4, atol=1e-5)


def test_bfloat16_steps_stay_bfloat16() -> None:
    plain = nn.Conv3d(3, 4, 3, padding=1)
    ours = convert_convolutions(copy.deepcopy(plain))
    clips = torch.randn(2, 3, 2, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        result, expected = ours(clips), plain(clips)
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=0.02, atol=0.02)


def test_layers_keep_their_parameters_and_places() -> None:
    shared = nn.Conv3d(3, 3, 3, padding=1)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ours = convert_convolutions(model)
    assert ours is model
    assert model[0] is model[2]
    before = shared.weight.detach().clone()
    ours(torch.randn(1, 3, 2, 4, 4)).sum().backward()
    optimizer.step()
    assert not torch.equal(model[0].weight, before)


@pytest.mark.parametrize("frames", [2, 8])
def test_an_exported_model_takes_clips_of_any_length(frames: int) -> None:
    plain = nn.Conv3d(3, 4, 3, padding=1)
    ours = convert_convolutions(copy.deepcopy(plain))
    dims = ({2: torch.export.Dim("frames", min=1, max=64)},)
    program = torch.export.export(ours, (torch.randn(2, 3, frames, 8, 8),), dynamic_shapes=dims)
    for length in (1, 2, 3, 9):
        clips = torch.randn(2, 3, length, 8, 8)
        torch.testing.assert_close(program.module()(clips), plain(clips))


def test_fx_traces_it_as_a_leaf() -> None:
    model = convert_convolutions(nn.Sequential(nn.Conv3d(3, 4, 3, padding=1), nn.ReLU()))
    traced = torch.fx.symbolic_trace(model)
    assert [node.target for node in traced.graph.nodes] == ["input", "0", "1", "output"]
    for frames in (2, 8):
        clips = torch.randn(2, 3, frames, 8, 8)
        torch.testing.assert_close(traced(clips), model(clips), rtol=0, atol=0)
