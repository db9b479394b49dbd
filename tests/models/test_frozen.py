"""What is frozen by name gets no gradient, and its batch norms keep their statistics."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vcycle.models import (
    build_model,
    commit_statistics,
    convert_batch_norm,
    defer_statistics,
    freeze,
    precise_bn,
    set_norm_group,
)
from vcycle.models.frozen import is_in_training


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return convert_batch_norm(build_model("resnet3d_tiny", num_classes=3, width=4))


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        (("stem*",), {"stem.weight", "stem_bn.weight", "stem_bn.bias"}),
        (("stem", "head"), {"stem.weight", "head.weight", "head.bias"}),
        (("blocks.0",), "blocks.0."),
        (("blocks.[01].*",), ("blocks.0.", "blocks.1.")),
        (("*.bias",), "bias"),
    ],
)
def test_patterns_match_parameters_and_layers(patterns: tuple[str, ...], frozen: object) -> None:
    model = tiny()
    count = freeze(model, patterns)
    found = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert count == len(found) > 0
    if frozen == "bias":
        frozen = {name for name, _ in model.named_parameters() if name.endswith("bias")}
    elif not isinstance(frozen, set):
        frozen = {name for name, _ in model.named_parameters() if name.startswith(frozen)}
    assert found == frozen


@pytest.mark.parametrize("defers", [False, True])
def test_frozen_batch_norms_keep_their_statistics(defers: bool) -> None:
    model = tiny()
    clips = torch.randn(4, 3, 4, 16, 16)
    model(clips)  # statistics of some batch
    freeze(model, ["stem*", "blocks.0.*_bn.weight"])
    if defers:
        defer_statistics(model)
    set_norm_group(model, 2)
    before = copy.deepcopy(model.state_dict())
    model.train()
    model(5 * clips).sum().backward()
    commit_statistics(model)
    for name, value in model.state_dict().items():
        # A batch norm is frozen if all of its parameters are.
        is_statistic = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        changed = is_statistic and not name.startswith("stem")
        assert torch.equal(value, before[name]) is not changed, name
    stem = model.stem_bn
    x = torch.randn(4, 4, 2, 3, 3)
    assert torch.equal(
        stem(x),
        nn.functional.batch_norm(
            x, stem.running_mean, stem.running_var, stem.weight, stem.bias, eps=stem.eps
        ),
    )
    precise_bn(model, [clips, 2 * clips])
    torch.testing.assert_close(stem.running_mean, before["stem_bn.running_mean"])
    torch.testing.assert_close(stem.running_var, before["stem_bn.running_var"])
    assert not torch.equal(model.blocks[0].a_bn.running_var, before["blocks.0.a_bn.running_var"])
    assert model.stem.weight.grad is None
    assert model.head.weight.grad is not None


@pytest.mark.parametrize(
    ("pattern", "near"), [("stm.*", "stem"), ("bloks", "blocks"), ("xyz", "stem")]
)
def test_a_pattern_that_matches_nothing(pattern: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"freeze .*: the model has no such layer; .*{near}"):
        freeze(tiny(), ["stem", pattern])


@pytest.mark.parametrize(
    ("pattern", "frozen"),
    [("backbone", True), ("backbone.*", True), ("backbone.1", True), ("backbone.0", False)],
)
def test_norms_without_parameters_are_frozen_with_the_layer_around_them(
    pattern: str, frozen: bool
) -> None:
    model = nn.Sequential()
    model.add_module("backbone", nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4, affine=False)))
    model.add_module("norm", nn.BatchNorm3d(4, affine=False))
    convert_batch_norm(model)
    assert freeze(model, [pattern]) == (0 if pattern == "backbone.1" else 2)
    model.train()
    assert is_in_training(model.backbone[1]) is not frozen
    model(torch.randn(4, 3, 2, 4, 4) + 1)
    assert bool(model.backbone[1].running_mean.any()) is not frozen
    assert bool(model.norm.running_mean.any())


def test_a_norm_that_trains_again_moves_its_statistics() -> None:
    model = tiny()
    freeze(model, ["stem*"])
    model.train()
    clips = torch.randn(4, 3, 4, 16, 16)
    model(clips)
    frozen = model.stem_bn.running_mean.clone()
    assert not is_in_training(model.stem_bn)
    model.requires_grad_(True).train()
    assert is_in_training(model.stem_bn)
    model(clips)
    assert not torch.equal(model.stem_bn.running_mean, frozen)
