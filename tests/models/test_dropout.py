"""Dropout by sample: its masks, its statistics, and what does not change them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vcycle.data.randomness import indexed_seeds
from vcycle.models import SampleDropout, build_model, convert_dropout, set_dropout_seeds
from vcycle.models.dropout import hashed_words

SEEDS = indexed_seeds(0, "dropout", np.arange(64))


def masks(layer: nn.Module, x: Tensor, seeds: Any = SEEDS) -> Tensor:
    """What a layer does to ones of the shape of ``x``."""
    set_dropout_seeds(layer, seeds[: len(x)])
    out: Tensor = layer(torch.ones_like(x))
    return out


@pytest.mark.parametrize("plain", [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_parts_of_a_batch_keep_their_masks(plain: type[nn.Module], parts: int) -> None:
    layer = convert_dropout(plain(0.5))
    x = torch.randn(8, 16, 2, 3, 3)
    set_dropout_seeds(layer, SEEDS[:8])
    expected = layer(x)
    assert not torch.equal(expected, x)
    size = 8 // parts
    for i in range(parts):
        set_dropout_seeds(layer, SEEDS[i * size : (i + 1) * size])
        part = layer(x[i * size : (i + 1) * size])
        torch.testing.assert_close(part, expected[i * size : (i + 1) * size], rtol=0, atol=0)


def test_rows_of_a_clip_may_be_folded_into_the_batch() -> None:
    """As in models that see frames as images."""
    layer = convert_dropout(nn.Dropout(0.5))
    x = torch.randn(4, 6, 10)
    set_dropout_seeds(layer, SEEDS[:4])
    torch.testing.assert_close(layer(x.flatten(0, 1)).view(4, 6, 10), layer(x), rtol=0, atol=0)


def test_words_are_those_of_the_hash_by_hand() -> None:
    """A mask is the same on every machine, and in a run that a later version goes on with."""

    def word(place: int, first: int, second: int) -> int:
        value = place ^ first
        value = (value ^ (value >> 16)) * 0x7FEB352D % 2**32 ^ second
        value = (value ^ (value >> 15)) * 0x846CA68B % 2**32
        return value ^ (value >> 16)

    keys = torch.tensor([[0, 0], [2**32 - 1, 1], [0x12345678, 0x9ABCDEF0]])
    by_hand = [[word(place, *key) for place in range(50)] for key in keys.tolist()]
    assert hashed_words(keys, 50).tolist() == by_hand


def test_keys_of_a_layer_are_those_of_the_generator_by_hand() -> None:
    model = nn.ModuleList([SampleDropout(0.5) for _ in range(3)])
    seeds = [0, 1234567, 2**64 - 1]
    set_dropout_seeds(model, np.array(seeds, np.uint64))
    for number, layer in enumerate(model):
        for seed, key in zip(seeds, layer._keys.tolist(), strict=True):
            value = (seed + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
            value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
            value ^= value >> 31
            assert key == [value % 2**32, value >> 32]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_masks_are_those_of_independent_draws(p: float) -> None:
    model = nn.ModuleList([nn.Dropout(p), nn.Dropout(p)])
    convert_dropout(model)
    set_dropout_seeds(model, SEEDS)
    kept = torch.stack([layer(torch.ones(64, 4096)) for layer in model]).ne(0).double()
    spread = (p * (1 - p)) ** 0.5
    assert abs(kept.mean() - (1 - p)) < 5 * spread / kept.numel() ** 0.5
    for dim, size in ((2, 4096), (1, 64)):  # means over one clip, and of one place in all clips
        z = (kept.mean(dim) - (1 - p)) / (spread / size**0.5)
        assert z.abs().max() < 6
        assert z.std() == pytest.approx(1, abs=0.2)
    flat = (kept.flatten(0, 1) - (1 - p)) / spread  # of 2 layers x 64 clips
    correlations = flat @ flat.T / 4096
    correlations.fill_diagonal_(0)
    assert correlations.abs().max() < 6 / 4096**0.5
    for lag in (1, 2, 16, 256):
        along = (flat[:, lag:] * flat[:, :-lag]).mean()
        assert along.abs() < 5 / flat[:, lag:].numel() ** 0.5


def test_a_kept_value_is_scaled_and_its_gradient_too() -> None:
    layer = convert_dropout(nn.Dropout(0.75))
    set_dropout_seeds(layer, SEEDS[:4])
    x = torch.randn(4, 100, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert set(x.grad.unique().tolist()) == {0.0, 4.0}
    torch.testing.assert_close(out, x * x.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("p", [0.0, 1.0, 0.5])
def test_extremes_and_types(p: float, dtype: torch.dtype) -> None:
    out = masks(convert_dropout(nn.Dropout(p)), torch.ones(2, 50, dtype=dtype))
    assert out.dtype == dtype
    assert out.unique().tolist() == {0.0: [1.0], 1.0: [0.0], 0.5: [0.0, 2.0]}[p]


def test_channels_are_dropped_as_one() -> None:
    out = masks(convert_dropout(nn.Dropout3d(0.5)), torch.ones(4, 50, 2, 3, 3))
    per_channel = out.flatten(2)
    assert torch.equal(per_channel.amin(2), per_channel.amax(2))
    assert per_channel[..., 0].unique().tolist() == [0.0, 2.0]


def test_in_place_layers_stay_so() -> None:
    layer = convert_dropout(nn.Dropout(0.5, inplace=True))
    x = torch.ones(4, 10)
    set_dropout_seeds(layer, SEEDS[:4])
    assert layer(x) is x
    assert x.min() == 0


def test_without_seeds_it_draws_as_the_plain_layer() -> None:
    x = torch.randn(5, 4, 2, 3, 3)
    for plain in (nn.Dropout(0.5), nn.Dropout3d(0.5), nn.Dropout3d(0.5, inplace=True)):
        layer = convert_dropout(plain)
        for seeds in (None, SEEDS[:2]):  # 5 rows are not those of 2 clips
            set_dropout_seeds(layer, seeds)
            torch.manual_seed(0)
            out = layer(x.clone())
            torch.manual_seed(0)
            torch.testing.assert_close(out, plain(x.clone()), rtol=0, atol=0)
        assert layer.eval()(x) is x


def test_conversion_keeps_names_settings_and_shared_layers() -> None:
    shared = nn.Dropout(0.3)
    model = nn.Sequential(
        nn.Linear(2, 2), shared, nn.Sequential(shared, nn.Dropout1d(0.2)), nn.ReLU()
    )
    model.eval()
    state = model.state_dict()
    assert convert_dropout(model) is model
    assert isinstance(model[1], SampleDropout)
    assert model[1] is model[2][0]
    assert [model[1].p, model[2][1].p] == [0.3, 0.2]
    assert not model[1].training
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    layers = [type(layer) for layer in model.modules()]
    assert nn.Dropout not in layers
    assert nn.Dropout1d not in layers


def test_layers_of_a_model_differ() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    convert_dropout(model)
    set_dropout_seeds(model, SEEDS[:2])
    x = torch.ones(2, 1000)
    assert not torch.equal(model[0](x), model[1](x))


def test_a_model_of_ours_gives_each_clip_its_scores_in_any_part() -> None:
    torch.manual_seed(0)
    model = convert_dropout(build_model("resnet3d_tiny", num_classes=5, dropout=0.5))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.eval()
    clips = torch.randn(4, 3, 4, 16, 16)
    set_dropout_seeds(model, SEEDS[:4])
    expected = model(clips)
    set_dropout_seeds(model, SEEDS[2:4])
    torch.testing.assert_close(model(clips[2:]), expected[2:])
    set_dropout_seeds(model, SEEDS[4:8])
    assert not torch.allclose(model(clips), expected)


def test_activation_checkpointing_draws_the_same_mask_again() -> None:
    model = convert_dropout(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
    set_dropout_seeds(model, SEEDS[:4])
    x = torch.randn(4, 8, requires_grad=True)
    outs = (model(x), checkpoint(model, x, use_reentrant=False))
    grads = [torch.autograd.grad(out.sum(), x)[0] for out in outs]
    torch.testing.assert_close(*grads, rtol=0, atol=0)


def test_seeds_do_not_wait_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be at work on the step before."""
    copies: list[dict[str, bool]] = []
    move = torch.Tensor.to

    def recorded(tensor: torch.Tensor, *where: object, **how: bool) -> torch.Tensor:
        copies.append(how)
        return move(tensor, *where, **how)

    monkeypatch.setattr(torch.Tensor, "to", recorded)
    set_dropout_seeds(convert_dropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))), SEEDS[:2])
    assert copies == [{"non_blocking": True}]


def test_new_seeds_do_not_compile_anew() -> None:
    torch.compiler.reset()
    layer = convert_dropout(nn.Dropout(0.5))
    graphs = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(layer, backend=graphs, fullgraph=True)
    for first in (0, 4, 8):
        set_dropout_seeds(layer, SEEDS[first : first + 4])
        x = torch.ones(4, 10)
        torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=0)
    assert graphs.frame_count == 1
    torch.compiler.reset()


def test_seeds_end_with_the_training_and_stay_out_of_copies() -> None:
    """As where dropout is left on in evaluation, or a model is trained on by another loop."""
    model, x = convert_dropout(nn.Sequential(nn.Dropout(0.5))), torch.ones(4, 50)
    masks(model, x)
    own = copy.deepcopy(model)
    assert not torch.equal(own(x), own(x))
    assert torch.equal(model(x), model(x))
    model.eval()
    model[0].train()
    assert not torch.equal(model(x), model(x))
