"""The entries that a plan reads without torch, against the networks that are built from them."""

from __future__ import annotations

import inspect
import json
from importlib.resources import files

import pytest
import torch

from vcycle.models import build_model
from vcycle.models.build import FAMILIES
from vcycle.models.count import multiply_adds
from vcycle.models.entries import MODELS, ModelEntry, find_model
from vcycle.schedule.shape import Shape, ShapeRule


def test_every_name_and_alias_is_of_one_entry() -> None:
    names = [name for entry in MODELS for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names)) == 33
    for entry in MODELS:
        for name in (entry.name, *entry.aliases):
            assert find_model(name) is entry


def test_no_two_entries_are_the_same_network() -> None:
    """With the defaults of the family filled in; what is the same is an alias."""
    networks = []
    for entry in MODELS:
        parameters = inspect.signature(FAMILIES[entry.family]).parameters
        assert entry.arguments.keys() <= parameters.keys()
        defaults = {name: each.default for name, each in parameters.items()}
        networks.append(repr((entry.family, {**defaults, **entry.arguments})))
    assert len(set(networks)) == len(networks)


@pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry.name)
def test_the_least_clip_passes(entry: ModelEntry) -> None:
    rule = entry.rule({})
    with torch.device("meta"):
        model = build_model(entry.name, num_classes=3)
        assert model(torch.empty(2, 3, rule.min_frames, 32, 32)).shape == (2, 3)
    if entry.family == "SlowFast":
        assert model.alpha == rule.frame_multiple


def test_alpha_and_pooling_follow_the_options() -> None:
    assert find_model("slowfast_r50_4x16").rule({}) == ShapeRule(frame_multiple=8, min_frames=8)
    slowfast, c2d = find_model("slowfast_r50_8x8"), find_model("c2d_r50")
    assert slowfast.rule({"alpha": 16}) == ShapeRule(frame_multiple=16, min_frames=16)
    assert (c2d.rule({}), c2d.rule({"pool_frames": False})) == (
        ShapeRule(min_frames=2),
        ShapeRule(),
    )
    assert find_model("c2d_nopool_r50_8x8").rule({}) == ShapeRule()


@pytest.mark.parametrize("entry", [entry for entry in MODELS if entry.multiply_adds])
def test_multiply_adds_are_those_of_the_networks(entry: ModelEntry) -> None:
    with torch.device("meta"):
        built = build_model(entry.name, num_classes=400)
    table = entry.multiply_adds
    for shape in (min(table), max(table)):
        assert multiply_adds(built, shape) == table[shape]


@pytest.mark.parametrize("share", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("options", [{}, {"width": 64, "depth": 2, "patch_side": 8}])
def test_multiply_adds_of_kept_tokens_are_those_of_the_transformer(
    share: float, options: dict[str, int]
) -> None:
    entry = find_model("video_vit_tiny")
    with torch.device("meta"):
        built = build_model(entry.name, num_classes=400, **options)
    for shape in (Shape(8, 96, 96), Shape(3, 40, 72)):
        counted = multiply_adds(built, shape, share)
        assert entry.clip_multiply_adds(shape, share, options) == counted
    assert find_model("slowfast_r50").clip_multiply_adds(Shape(8, 96, 96), 1.0, {}) is None


def test_multiply_adds_are_of_names_that_exist() -> None:
    assert sum(bool(entry.multiply_adds) for entry in MODELS) == 7
    assert find_model("slowfast_tiny").multiply_adds[Shape(8, 96, 96)] > 10**7
    assert find_model("slowfast_r50_16x8_ssv2").multiply_adds[Shape(64, 224, 224)] > 10**11
    counted = json.loads(files("vcycle.models").joinpath("multiply_adds.json").read_text())
    assert counted.keys() <= {entry.name for entry in MODELS}


def test_a_name_that_is_not_known() -> None:
    with pytest.raises(ValueError, match=r"^model zzz: no such .*; vcycle models lists them$"):
        find_model("zzz")
