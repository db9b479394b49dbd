"""Which layer a parameter is of, and the rates that follow."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vcycle
from tests.train.plans import BASELINE, PLAN, batch_of
from vcycle.models import build_model, parameter_groups
from vcycle.models.layer_decay import layer_depths
from vcycle.train.rates import set_learning_rate


def depths_of(name: str) -> dict[str, int]:
    with torch.device("meta"):
        return layer_depths(build_model(name, num_classes=3))


@pytest.mark.parametrize("name", ["slowfast_r50", "i3d_nl_r50", "slowfast_tiny"])
def test_stages_of_the_papers_models(name: str) -> None:
    expected = {"s1": 0, "s2": 1, "s3": 2, "s4": 3, "s5": 4, "head": 5}
    depths = depths_of(name)
    assert set(depths.values()) == set(range(6))
    for parameter, depth in depths.items():
        assert depth == expected[parameter.partition(".")[0].removesuffix("_fuse")]


def test_a_sequence_of_blocks_is_as_many_layers() -> None:
    depths = depths_of("resnet3d_tiny")
    assert list(depths.values()) == sorted(depths.values())
    assert depths["stem.weight"] == depths["stem_bn.bias"] == 0
    assert [depths[f"blocks.{i}.a.weight"] for i in range(4)] == [1, 2, 3, 4]
    assert depths["head.weight"] == 5


def test_a_transformer_as_beit_has_it() -> None:
    depths = depths_of("video_vit_tiny")
    blocks = 1 + max(int(name.split(".")[1]) for name in depths if name.startswith("blocks."))
    assert depths["embedding.weight"] == 0
    for name, depth in depths.items():
        if name.startswith("blocks."):
            assert depth == int(name.split(".")[1]) + 1
    assert depths["norm.weight"] == depths["head.weight"] == blocks + 1


def test_a_flat_sequence_is_as_many_layers() -> None:
    model = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.Flatten(), nn.Linear(4, 2))
    assert list(layer_depths(model).values()) == [0, 0, 1, 1, 2, 2]
    groups = parameter_groups(model, weight_decay=0.1, layer_decay=0.5)
    assert sorted({group["lr_scale"] for group in groups}) == [0.25, 0.5, 1]


class Two(nn.Module):
    """Two lists of layers, one between them, and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 4))
        self.first = nn.ModuleList([nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)])
        self.between = nn.Linear(2, 2)
        self.second = nn.Sequential(nn.Linear(2, 2))
        self.norm = nn.LayerNorm(2)
        self.head = nn.Linear(2, 2)


def test_several_lists_of_layers() -> None:
    depths = layer_depths(Two())
    assert depths["token"] == 0
    assert depths["first.0.weight"] == 1
    assert depths["first.2.bias"] == depths["between.weight"] == 2
    assert depths["second.0.weight"] == 3
    assert depths["norm.bias"] == depths["head.weight"] == 4


def test_a_wrapper_has_the_layers_of_what_it_wraps() -> None:
    class Wrapper(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base = base
            self.drop = nn.Dropout()

    expected = {f"base.base.{name}": depth for name, depth in layer_depths(Two()).items()}
    assert layer_depths(Wrapper(Wrapper(Two()))) == expected
    with pytest.raises(ValueError, match=r"no nn.Sequential or nn.ModuleList of layers"):
        layer_depths(Wrapper(nn.Linear(1, 1)))
    prompted = Wrapper(Two())
    prompted.prompt = nn.Parameter(torch.zeros(1))  # of no layer of what it wraps
    with pytest.raises(ValueError, match=r"no nn.Sequential or nn.ModuleList of layers"):
        layer_depths(prompted)


def test_rates_fall_towards_the_input() -> None:
    model = Two()
    model.first[0].bias.requires_grad_(False)
    plain = parameter_groups(model, weight_decay=0.1)
    groups = parameter_groups(model, weight_decay=0.1, layer_decay=0.5)
    assert all("lr_scale" not in group for group in plain)
    for decay in (0.0, 0.1):
        split = [p for g in groups if g["weight_decay"] == decay for p in g["params"]]
        whole = [p for g in plain if g["weight_decay"] == decay for p in g["params"]]
        assert {id(p) for p in split} == {id(p) for p in whole}
        assert len(split) == len(whole)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    depths = layer_depths(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert scale[id(parameter)] == 0.5 ** (4 - depths[name])


def test_apply_step_multiplies_the_plans_rate() -> None:
    model = Two()
    groups = parameter_groups(model, weight_decay=0.1, layer_decay=0.5)
    optimizer = torch.optim.SGD(groups, lr=BASELINE.learning_rate.base)
    vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer)
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(PLAN[0].learning_rate * group["lr_scale"])


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match=r"no nn.Sequential or nn.ModuleList of layers; give it a"):
        parameter_groups(nn.Linear(1, 1), weight_decay=0, layer_decay=0.9)
    with pytest.raises(ValueError, match=r"layer_decay 1.5: give a number above 0"):
        parameter_groups(Two(), weight_decay=0, layer_decay=1.5)


def test_a_run_multiplies_the_plans_rate_too() -> None:
    """``vcycle train`` sets rates by a function of its own."""
    groups = parameter_groups(Two(), weight_decay=0.1, layer_decay=0.5)
    optimizer = torch.optim.SGD(groups, lr=0.0)
    for rate in (0.4, 0.1):
        set_learning_rate(optimizer, rate)
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(
            [rate * group["lr_scale"] for group in groups]
        )
    assert {group["lr_scale"] for group in groups} > {0.5, 1.0}
