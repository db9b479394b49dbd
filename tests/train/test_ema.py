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


def test_the_average_follows_its_formula() -> None:
    model = network()
    average = WeightAverage(model, decay=0.3)
    expected = {}
    for number in range(6):
        move(model, number)
        average.update_parameters(model)
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
    average.update_parameters(model)
    first = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1 + 2j)
    average.update_parameters(model)
    torch.testing.assert_close(average.module.weight, first + (1 - 2 / 11) * (1 + 2j))


def test_an_average_goes_on_to_the_last_bit() -> None:
    model = network()
    whole = WeightAverage(model, decay=0.9)
    other = WeightAverage(model, decay=0.9)
    for number in range(8):
        move(model, number)
        whole.update_parameters(model)
        if number == 3:
            other.load_state(whole.state())
        elif number > 3:
            other.update_parameters(model)
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
    with pytest.raises(
        ValueError, match=rf"^WeightAverage \(ema_decay\): layer '1\.1' \({kind}\) cannot be copied"
    ):
        WeightAverage(model, decay=0.9)
    parametrized = nn.utils.parametrizations.weight_norm(nn.Conv3d(3, 4, 1))
    WeightAverage(parametrized, decay=0.9)


class Failing(nn.Linear):
    """The first copy of it fails, the next one does not."""

    def __init__(self, error: Exception) -> None:
        super().__init__(2, 2)
        self.errors = [error]

    def __deepcopy__(self, memo: object) -> Failing:
        if self.errors:
            raise self.errors.pop()
        return self


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError("of its own")])
def test_other_errors_are_those_of_the_copy(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        WeightAverage(nn.Sequential(Failing(error)), decay=0.9)


class Growing(nn.Module):
    """It keeps tables for the last clip, statistics under two names, and its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)
        self.register_buffer("positions", torch.zeros(4), persistent=False)
        self.register_buffer("sizes", None, persistent=False)
        self.norm = nn.BatchNorm3d(1)
        self.same = nn.BatchNorm3d(1)
        self.same.running_mean = self.norm.running_mean
        self.calls: list[int] = []

    def get_extra_state(self) -> list[int]:
        return self.calls

    def set_extra_state(self, state: list[int]) -> None:
        self.calls = state

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        frames = clips.shape[2]
        self.calls.append(frames)
        self.positions, self.sizes = torch.arange(frames), torch.tensor(clips.shape)
        return self.head(self.norm(clips).mean((2, 3, 4)))


def test_a_model_trains_at_two_shapes_with_what_no_checkpoint_keeps() -> None:
    torch.manual_seed(0)
    model = Growing()
    average = WeightAverage(model, decay=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means = []
    for frames in (8, 2):
        model(torch.randn(2, 1, frames, 4, 4)).square().sum().backward()
        optimizer.step()
        average.update_parameters(model)
        means.append(model.norm.running_mean.clone())
    found = average.module
    expected = means[0] + (1 - 2 / 11) * (means[1] - means[0])
    torch.testing.assert_close(found.norm.running_mean, expected)
    assert found.positions.shape == (4,)
    assert found.sizes is None
    assert average.state()["average"]["_extra_state"] == [8, 2]
    found(torch.randn(2, 1, 3, 4, 4))  # its own calls are not the network's
    assert model.calls == [8, 2]
