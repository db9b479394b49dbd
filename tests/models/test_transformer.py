"""The video transformer: its positions, its shapes, its scores, and what decays."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from vcycle.models import build_model, check_model, parameter_groups
from vcycle.models.count import multiply_adds, num_parameters
from vcycle.models.entries import find_model
from vcycle.models.transformer import Block, positions
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape, ShapeRule

CPU = torch.device("cpu")
SMALL = {"width": 32, "depth": 2, "heads": 2}


def transformer(**options: object) -> nn.Module:
    torch.manual_seed(0)
    return build_model("video_vit_tiny", num_classes=3, **{**SMALL, **options})


def test_size_and_cost() -> None:
    model = build_model("video_vit_tiny", num_classes=8)
    assert num_parameters(model) == 1_387_656
    assert multiply_adds(model, Shape(8, 96, 96)) == 230_032_384


def test_scores_of_given_weights() -> None:
    model = transformer().eval()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            wave = torch.arange(parameter.numel(), dtype=torch.float64) + number
            parameter.copy_((wave * 0.7).sin().mul(0.2).view(parameter.shape))
        clips = (torch.arange(2 * 3 * 4 * 32 * 48) * 0.01).sin().view(2, 3, 4, 32, 48)
        scores = model(clips)
    expected = [[0.642916, -0.060466, 0.031092], [0.630666, -0.049388, 0.023012]]
    torch.testing.assert_close(scores, torch.tensor(expected), atol=1e-4, rtol=1e-4)


def test_a_block_is_softmax_attention_then_two_linear_layers() -> None:
    torch.manual_seed(0)
    block = Block(16, heads=2).double()
    x = torch.randn(3, 5, 16, dtype=torch.float64)
    query, key, value = block.query_key_value(block.attention_norm(x)).chunk(3, 2)
    mixed = []
    for head in (slice(0, 8), slice(8, 16)):
        weights = (query[..., head] @ key[..., head].mT / math.sqrt(8)).softmax(2)
        mixed.append(weights @ value[..., head])
    y = x + block.projection(torch.cat(mixed, 2))
    torch.testing.assert_close(block(x), y + block.mlp(block.mlp_norm(y)))


@pytest.mark.parametrize("shape", [(1, 16, 16), (2, 48, 48), (5, 33, 50), (8, 96, 64)])
def test_any_shape_works_and_passes_gradients(shape: tuple[int, int, int]) -> None:
    check_model(transformer(), [Shape(*shape)], num_classes=3)


def test_every_parameter_learns() -> None:
    model = transformer()
    model(torch.randn(2, 3, 4, 32, 32)).square().sum().backward()
    assert all(bool(parameter.grad.any()) for parameter in model.parameters())


def test_a_clip_of_part_tubelets_is_padded_with_the_mean() -> None:
    model = transformer().eval()
    clips = torch.randn(1, 3, 3, 40, 30)
    whole = torch.zeros(1, 3, 4, 48, 32)
    whole[:, :, :3, :40, :30] = clips
    torch.testing.assert_close(model(clips), model(whole))


def test_scores_see_the_order_of_frames_and_places() -> None:
    model = transformer().eval()
    clips = torch.randn(1, 3, 8, 32, 32)
    for axis in (2, 3, 4):
        assert not torch.allclose(model(clips), model(clips.roll(16 if axis > 2 else 2, axis)))


def test_positions_are_those_of_the_place_whatever_the_grid() -> None:
    """Every third token of a fine axis lies where a token of the coarse one does."""
    fine = positions(torch.Size((12, 9, 9)), 64, device=CPU).view(12, 9, 9, 64)
    coarse = positions(torch.Size((4, 3, 3)), 64, device=CPU).view(4, 3, 3, 64)
    torch.testing.assert_close(fine[1::3, 1::3, 1::3], coarse)


def test_positions_by_hand_and_no_two_alike() -> None:
    grid = positions(torch.Size((3, 16, 16)), 16, device=CPU).view(3, 16, 16, 16)
    time, height = 0.5 / 3, 2.5 / 16
    by_hand = [math.sin(math.pi * time), math.sin(16 * math.pi * time)]
    torch.testing.assert_close(grid[0, 2, 5, :2], torch.tensor(by_hand))
    assert grid[0, 2, 5, 4].item() == pytest.approx(math.sin(math.pi * height), abs=1e-6)
    rows = grid.flatten(0, 2)
    assert torch.cdist(rows, rows).fill_diagonal_(1).min() > 0.1


def test_neither_biases_nor_norms_decay() -> None:
    model = transformer()
    decayed, spared = parameter_groups(model, weight_decay=0.05)
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert all(names[each].endswith("bias") or "norm" in names[each] for each in spared["params"])
    assert all(each.ndim >= 2 for each in decayed["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(names)


def test_a_plan_keeps_to_whole_tubelets() -> None:
    entry = find_model("video_vit_tiny")
    assert entry.rule({}) == ShapeRule(frame_multiple=2, side_multiple=16)
    assert entry.rule({"patch_side": 8}) == ShapeRule(frame_multiple=2, side_multiple=8)
    baseline = Baseline(Shape(8, 96, 96), 8, 600, 100, LearningRate(0.01), (240, 400))
    plan = Plan(baseline, Multigrid(norm_group=None, rule=entry.rule({})))
    assert [str(shape) for shape in plan.shapes] == [
        *("2x48x48", "2x64x64", "4x48x48", "4x64x64", "8x48x48", "8x64x64", "4x96x96", "8x96x96")
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 24}, "width 24: give a multiple of 16 and of 2 heads"),
        ({"width": 48, "heads": 5}, "width 48: give a multiple of 16 and of 5 heads"),
        ({"depth": 0}, "depth 0: give a whole number of at least 1"),
        ({"depth": 10**7}, "depth 10000000: give at most 1000"),
        ({"patch_side": 0}, "patch_side 0: give a whole number of at least 1"),
        ({"heads": 4.0}, "heads 4.0: give a whole number of at least 1"),
        ({"patch_frames": "two"}, "patch_frames 'two': give a whole number of at least 1"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        transformer(**options)
    find_model("video_vit_tiny").rule(options)  # the builder is who refuses them
