"""Which parameters decay, whatever the kind of norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from vcycle.models import build_model, convert_batch_norm, freeze, parameter_groups


def names_of(model: nn.Module, parameters: list[nn.Parameter]) -> list[str]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [names[parameter] for parameter in parameters]


@pytest.mark.parametrize("name", ["i3d_nl_r50", "slowfast_r50"])
def test_norms_do_not_decay_and_everything_else_does(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name, num_classes=3)
    decayed, spared = parameter_groups(model, weight_decay=1e-4)
    assert decayed["weight_decay"] == 1e-4
    assert spared["weight_decay"] == 0
    spared_names = names_of(model, spared["params"])
    decayed_names = names_of(model, decayed["params"])
    assert all("bn." in key for key in spared_names)
    assert not any("bn." in key for key in decayed_names)
    assert "head.projection.bias" in decayed_names
    assert len(spared_names) + len(decayed_names) == len(list(model.parameters()))
    before = (decayed_names, spared_names)
    convert_batch_norm(model)
    after = parameter_groups(model, weight_decay=1e-4)
    assert tuple(names_of(model, group["params"]) for group in after) == before


def test_optimizer_state_loads_across_the_kinds_of_norm() -> None:
    def build(converted: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = build_model("resnet3d_tiny", num_classes=3, width=4)
        if converted:
            convert_batch_norm(model)
        groups = parameter_groups(model, weight_decay=0.1)
        return model, torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    plain, first = build(False)
    plain(torch.randn(2, 3, 2, 16, 16)).square().sum().backward()
    first.step()
    model, second = build(True)
    second.load_state_dict(first.state_dict())
    model.load_state_dict(plain.state_dict())
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(
            first.state[a]["momentum_buffer"], second.state[b]["momentum_buffer"]
        )


def test_other_norms_shared_and_frozen_parameters() -> None:
    linear = nn.Linear(4, 4)
    model = nn.Sequential(linear, nn.LayerNorm(4), nn.GroupNorm(2, 4), linear, nn.Linear(4, 2))
    model[4].weight.requires_grad = False
    decayed, spared = parameter_groups(model, weight_decay=1)
    assert names_of(model, decayed["params"]) == ["0.weight", "0.bias", "4.bias"]
    assert names_of(model, spared["params"]) == ["1.weight", "1.bias", "2.weight", "2.bias"]


def test_a_model_may_name_what_does_not_decay() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.zeros(1, 4))
            self.linear = nn.Linear(4, 4)

        def no_weight_decay(self) -> set[str]:
            return {"first", "linear.bias"}

    model = Tokens()
    decayed, spared = parameter_groups(model, weight_decay=1)
    assert names_of(model, decayed["params"]) == ["linear.weight"]
    assert names_of(model, spared["params"]) == ["first", "linear.bias"]
    model.linear = torch.compile(model.linear, backend="eager")  # which renames its parameters
    wrapped = parameter_groups(model, weight_decay=1)
    assert [id(p) for p in wrapped[1]["params"]] == [id(p) for p in spared["params"]]


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="weight_decay -1: "):
        parameter_groups(nn.Linear(1, 1), weight_decay=-1)
    with pytest.raises(ValueError, match="no parameters to train"):
        parameter_groups(nn.ReLU(), weight_decay=0)


class Wrapper(nn.parallel.DataParallel):
    """Wraps as DDP does, without processes."""


@pytest.mark.parametrize(
    "wrap",
    [
        Wrapper,
        lambda model: torch.compile(model, backend="eager"),
        lambda model: Fabric(accelerator="cpu", devices=1).setup_module(model),
    ],
    ids=["parallel", "compiled", "fabric"],
)
def test_a_wrapped_model_has_the_groups_and_the_names_of_the_one_within(wrap: Any) -> None:
    model = build_model("video_vit_tiny", num_classes=3)
    assert model.no_weight_decay()
    plain, wrapped = (parameter_groups(each, weight_decay=0.1) for each in (model, wrap(model)))
    for one, other in zip(plain, wrapped, strict=True):
        assert [id(p) for p in one["params"]] == [id(p) for p in other["params"]]
    assert freeze(wrap(model), ["head"]) == 2


def test_a_model_with_a_wrapped_part_spares_what_it_spared_before() -> None:
    """A model that lists its own parameters then has the wrapper's names for them."""
    model = build_model("video_vit_tiny", num_classes=3, width=32, depth=2, heads=2)
    plain = parameter_groups(model, weight_decay=0.1)
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    wrapped = parameter_groups(model, weight_decay=0.1)
    for one, other in zip(plain, wrapped, strict=True):
        assert [id(p) for p in one["params"]] == [id(p) for p in other["params"]]
