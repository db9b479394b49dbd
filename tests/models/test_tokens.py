"""Which tokens a clip keeps: how many, which ones, and that nothing but its seed decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from vcycle.models import (
    TokenDrop,
    build_model,
    convert_dropout,
    set_dropout_seeds,
    set_token_share,
)

SEEDS = np.arange(1, 9, dtype=np.uint64) * np.uint64(2**60 + 12_345)
NUMBERED = torch.arange(20.0)[None, :, None].expand(8, 20, 1)  # each token is its number


def kept(share: float, seeds: np.ndarray | None, tokens: torch.Tensor = NUMBERED) -> torch.Tensor:
    layer = TokenDrop()
    set_token_share(layer, share)
    set_dropout_seeds(layer, seeds)
    return layer(tokens)[:, :, 0]


@pytest.mark.parametrize("seeds", [SEEDS, None])
@pytest.mark.parametrize(("share", "count"), [(0.25, 5), (0.5, 10), (0.01, 1), (0.97, 19)])
def test_every_clip_keeps_as_many_in_their_order(
    share: float, count: int, seeds: np.ndarray | None
) -> None:
    places = kept(share, seeds)
    assert places.shape == (8, count)
    assert (places.diff(dim=1) > 0).all()  # no token twice
    assert len({tuple(row) for row in places.tolist()}) > 1  # clips differ


def test_the_seed_decides_and_not_the_place_in_the_batch() -> None:
    whole = kept(0.5, SEEDS)
    assert torch.equal(kept(0.5, SEEDS), whole)
    parts = [kept(0.5, SEEDS[part], NUMBERED[part]) for part in (slice(0, 3), slice(3, 8))]
    assert torch.equal(torch.cat(parts), whole)
    # Two rows of a clip follow each other and keep the same tokens.
    views = kept(0.5, SEEDS, NUMBERED.repeat_interleave(2, 0))
    assert torch.equal(views, whole.repeat_interleave(2, 0))
    assert not torch.equal(kept(0.5, SEEDS + np.uint64(1)), whole)


def test_every_token_is_kept_as_often() -> None:
    seeds = np.arange(4000, dtype=np.uint64) * np.uint64(7919)
    places = kept(0.25, seeds, NUMBERED[:1].expand(4000, 20, 1))
    counts = torch.bincount(places.flatten().long(), minlength=20)
    # A binomial count of mean 1,000 and deviation 27.
    assert (counts - 1000).abs().max() < 140


def test_evaluation_keeps_all_and_gradients_reach_what_is_kept() -> None:
    layer = TokenDrop()
    set_token_share(layer, 0.5)
    tokens = torch.randn(2, 6, 3, requires_grad=True)
    layer(tokens).sum().backward()
    assert tokens.grad is not None
    assert tokens.grad.sum() == 2 * 3 * 3
    assert layer.eval()(tokens) is tokens
    set_token_share(layer.train(), 1.0)
    assert layer(tokens) is tokens
    assert not layer.state_dict()


def test_a_transformer_trains_on_its_share() -> None:
    torch.manual_seed(0)
    options = {"width": 32, "depth": 1, "heads": 2, "dropout": 0.5}
    model = convert_dropout(build_model("video_vit_tiny", num_classes=3, **options))
    clips = torch.randn(8, 3, 4, 32, 32)
    seen: list[int] = []
    model.blocks.register_forward_hook(lambda _, args, __: seen.append(args[0].shape[1]))
    set_token_share(model, 0.5)
    set_dropout_seeds(model, SEEDS)
    whole = model(clips)
    parts = []
    for part in (slice(0, 2), slice(2, 8)):
        set_dropout_seeds(model, SEEDS[part])
        parts.append(model(clips[part]))
    torch.testing.assert_close(torch.cat(parts), whole)
    model.eval()(clips)
    assert seen == [4, 4, 4, 8]


def test_a_model_without_tokens_is_refused_in_one_line() -> None:
    model = nn.Linear(2, 2)
    set_token_share(model, 1.0)
    with pytest.raises(ValueError, match=r"a phase keeps 0\.5 of the tokens, and the model cannot"):
        set_token_share(model, 0.5)
