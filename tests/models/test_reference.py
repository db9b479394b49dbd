"""Every model of the paper against the numbers of the authors' implementation."""

from __future__ import annotations

import pytest
import torch

from tests.models import reference
from vcycle.models import build_model
from vcycle.models.count import (
    model_costs,
    multiply_adds,
    multiply_adds_or_none,
    num_parameters,
)
from vcycle.models.entries import MODELS
from vcycle.schedule.shape import Shape

FACTS = reference.read("models")
LOGITS = reference.read("logits")


@pytest.mark.parametrize("name", FACTS["models"])
def test_keys_and_shapes_and_counts(name: str) -> None:
    facts = FACTS["models"][name]
    with torch.device("meta"):
        model = build_model(name, num_classes=facts["num_classes"])
        of_400_classes = build_model(name, num_classes=400)
    ours = [[key, list(value.shape)] for key, value in model.state_dict().items()]
    expected = FACTS["state_dicts"][facts["state_dict"]]
    assert ours == expected
    assert num_parameters(of_400_classes) == facts["parameters"]
    some = sorted(facts["multiply_adds"])[:: 1 if name == "i3d_nln_r50_8x8" else 5]
    assert {size: multiply_adds(model, Shape.parse(size)) for size in some} == {
        size: facts["multiply_adds"][size] for size in some
    }


@pytest.mark.parametrize("name", LOGITS)
def test_outputs_before_softmax(name: str) -> None:
    facts = LOGITS[name]
    model = build_model(name, num_classes=400).eval()
    state = reference.ruled_state(model)
    total = sum(float(value.double().sum()) for value in state.values())
    assert total == pytest.approx(facts["weights_sum"], rel=1e-9)
    model.load_state_dict(state)
    for size, expected in facts["sizes"].items():
        shape = Shape.parse(size)
        generator = torch.Generator().manual_seed(0)
        dims = (1, 3, shape.frames, shape.height, shape.width)
        with torch.no_grad():
            scores = model(torch.randn(dims, generator=generator))[0]
        error = (scores[:16] - torch.tensor(expected["logits_first16"])).abs().max()
        assert error < 1e-5 * expected["logits_abs_max"], size
        assert int(scores.argmax()) == expected["argmax"]
        assert scores.mean().item() == pytest.approx(expected["logits_mean"], abs=1e-4)
        assert scores.std().item() == pytest.approx(expected["logits_std"], rel=1e-5)


@pytest.mark.parametrize("name", [entry.name for entry in MODELS if "tiny" not in entry.name])
def test_every_name_builds_a_model_that_counts(name: str) -> None:
    (cost,) = model_costs(Shape(8, 64, 64), names=[name])
    assert cost.name == name
    assert cost.parameters > 2e7
    assert cost.multiply_adds > 1e8


def test_counts_of_a_layer_by_hand() -> None:
    layer = torch.nn.Conv3d(3, 8, 3, stride=2, bias=True)
    assert multiply_adds(layer, Shape(5, 7, 9)) == 8 * (2 * 3 * 4) * 3 * 27
    assert layer.training
    assert layer.weight.device.type == "cpu"


def test_a_model_that_the_meta_device_cannot_run_is_not_counted() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv3d(3, 4, 1)
            self.scale = torch.ones(3, 1, 1, 1)  # no buffer: it stays where it is

        def forward(self, clips: torch.Tensor) -> torch.Tensor:
            return self.conv(clips * self.scale)

    assert multiply_adds_or_none(Scaled(), Shape(4, 8, 8)) is None
    assert multiply_adds_or_none(Scaled().conv, Shape(4, 8, 8)) == 4 * 3 * 4 * 64
