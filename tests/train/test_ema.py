"""The average of weights against its formula, and going on from its state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from vcycle.train.ema import WeightAverage


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4))


def move(model: nn.Module, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for value in (*model.parameters(), model[1].running_mean):
            value.add_(torch.randn(value.shape, generator=generator))
        model[1].num_batches_tracked.add_(1)


@pytest.mark.parametrize("name", ["update", "update_parameters"])  # the second one is torch's
def test_the_average_follows_its_formula(name: str) -> None:
    model = network()
    average = WeightAverage(model, decay=0.3)
    expected = {}
    for number in range(6):
        move(model, number)
        getattr(average, name)(model)
        decay = min(0.3, (1 + number) / (10 + number))
        for key, value in model.state_dict().items():
            if number == 0 or not value.is_floating_point():
                expected[key] = value.clone()
            else:
                expected[key] = decay * expected[key] + (1 - decay) * value
    assert average.module.state_dict().keys() == model.state_dict().keys()
    for key, value in average.module.state_dict().items():
        torch.testing.assert_close(value, expected[key])
    assert not torch.equal(average.module[0].weight, model[0].weight)
    assert not any(parameter.requires_grad for parameter in average.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_complex_weights_are_averaged() -> None:
    model = nn.Conv3d(3, 4, 1, bias=False, dtype=torch.complex64)
    average = WeightAverage(model, decay=0.9)
    average.update(model)
    first = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1 + 2j)
    average.update(model)
    torch.testing.assert_close(average.module.weight, first + (1 - 2 / 11) * (1 + 2j))


def test_an_average_goes_on_to_the_last_bit() -> None:
    model = network()
    whole = WeightAverage(model, decay=0.9)
    other = WeightAverage(model, decay=0.9)
    for number in range(8):
        move(model, number)
        whole.update(model)
        if number == 3:
            other.load_state(whole.state())
        elif number > 3:
            other.update(model)
    for a, b in zip(whole.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_an_average_keeps_the_memory_format() -> None:
    model = nn.Conv3d(3, 4, 3).to(memory_format=torch.channels_last_3d)
    average = WeightAverage(model, decay=0.9)
    assert average.module.weight.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (lambda: nn.utils.weight_norm(nn.Conv3d(3, 4, 1)), "Conv3d"),
        (lambda: torch.jit.script(nn.Conv3d(3, 4, 1)), "RecursiveScriptModule"),
    ],
)
def test_a_layer_that_cannot_be_copied_is_named(made: Callable[[], nn.Module], kind: str) -> None:
    model = nn.Sequential(nn.BatchNorm3d(3), nn.Sequential(nn.ReLU(), made()))
    with pytest.raises(ValueError, match=rf"^ema_decay: layer '1\.1' \({kind}\) cannot be copied"):
        WeightAverage(model, decay=0.9)
    parametrized = nn.utils.parametrizations.weight_norm(nn.Conv3d(3, 4, 1))
    WeightAverage(parametrized, decay=0.9)
