"""Building by name: the demo's model, options, and calls that are wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vcycle.models import build_model


@pytest.mark.parametrize("shape", [(2, 16, 16), (8, 64, 64), (5, 45, 33)])
def test_tiny_takes_any_shape_and_passes_gradients(shape: tuple[int, int, int]) -> None:
    model = build_model("resnet3d_tiny", num_classes=7)
    clips = torch.randn(2, 3, *shape, requires_grad=True)
    scores = model(clips)
    assert scores.shape == (2, 7)
    scores.square().sum().backward()
    assert clips.grad is not None
    assert clips.grad.abs().sum() > 0


def test_tiny_sees_the_order_of_frames() -> None:
    torch.manual_seed(0)
    model = build_model("resnet3d_tiny", num_classes=7).eval()
    clips = torch.randn(1, 3, 8, 32, 32)
    assert not torch.allclose(model(clips), model(clips.flip(2)), atol=1e-5)


def test_tiny_starts_with_blocks_that_are_shortcuts() -> None:
    model = build_model("resnet3d_tiny", num_classes=2)
    final_norms = [m for name, m in model.named_modules() if name.endswith(".b_bn")]
    assert len(final_norms) == 4
    assert all(isinstance(m, nn.BatchNorm3d) and not m.weight.any() for m in final_norms)


def test_options_reach_the_builder() -> None:
    assert build_model("resnet3d_tiny", num_classes=2, width=4).head.weight.shape == (2, 32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"name": "resnet3d_tinny"}, "did you mean resnet3d_tiny"),
        ({"name": "resnet3d_tiny", "num_classes": 0}, "num_classes 0: "),
        ({"name": "resnet3d_tiny", "num_classes": "x"}, "num_classes 'x': "),
        ({"name": "resnet3d_tiny", "widht": 2}, "it takes width, dropout"),
        ({"name": "resnet3d_tiny", "width": 0}, "width 0: "),
        ({"name": "video_vit_tiny", "patch_side": 10**12}, "an option is too large .*10000000"),
    ],
)
def test_a_wrong_call_is_one_clear_line(call: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build_model(**{"num_classes": 2, **call})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
