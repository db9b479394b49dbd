"""Convolutions of short clips: those of torch, and what they leave to it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vcycle.models import build_model, convert_convolutions
from vcycle.models.short_clips import ShortClipConv3d

FORMATS = [torch.contiguous_format, torch.channels_last_3d]
LAYERS: list[dict[str, Any]] = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (3, 1, 1), "padding": (1, 0, 0), "bias": False},
    {"kernel_size": (5, 7, 7), "padding": (2, 3, 3), "stride": (1, 2, 2)},
    {"kernel_size": (3, 3, 3), "padding": (2, 1, 0)},
    {"kernel_size": (5, 3, 3), "padding": (2, 2, 2), "dilation": (1, 2, 2)},
    {"kernel_size": (4, 1, 3), "padding": (3, 0, 1), "bias": False},
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
    result = gradients(ours, clips)
    if frames < plain.kernel_size[0]:
        assert result[0].is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1, "stride": 2},
        {"kernel_size": 3, "padding": 2, "dilation": 2},
        {"kernel_size": 3, "padding": 1, "groups": 2},
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
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


@pytest.mark.parametrize("name", ["resnet3d_tiny", "slowfast_tiny"])
@pytest.mark.parametrize("shape", [(2, 48, 48), (4, 32, 32)])
def test_models_train_as_before(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    plain = build_model(name, num_classes=5, dropout=0.0).double()
    ours = convert_convolutions(copy.deepcopy(plain))
    assert list(ours.state_dict()) == list(plain.state_dict())
    clips = torch.randn(4, 3, *shape, dtype=torch.float64)
    torch.testing.assert_close(
        gradients(ours, clips), gradients(plain, clips), rtol=1e-9, atol=1e-9
    )


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


def test_a_compiled_model_is_torchs() -> None:
    """What is exported or compiled is not cut to the number of frames that it was shown."""
    ours = convert_convolutions(nn.Conv3d(3, 4, 3, padding=1))
    program = torch.export.export(ours, (torch.randn(1, 3, 2, 8, 8),))
    names = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any("conv3d" in name for name in names)
    assert not any("conv2d" in name for name in names)
