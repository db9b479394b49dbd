"""Mixtures of neighbours, by the seeds of clips."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vcycle.config.user_recipes import scratch
from vcycle.train.gradients import Gradients, Pieces
from vcycle.train.mixing import box, mix


def some(n: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (n, 2, 12, 16, 3), dtype=torch.uint8, generator=generator)
    labels = F.one_hot(torch.arange(n), n).float()
    return pixels.permute(0, 4, 1, 2, 3), labels, np.arange(n, dtype=np.uint64) + np.uint64(40)


def partner(i: int) -> int:
    return i + 1 if i % 2 == 0 else i - 1


def test_mixup_is_a_weighted_mean_of_a_pair() -> None:
    clips, labels, seeds = some(6)
    mixed, targets = mix(clips, labels, seeds, mixup=1.0, cutmix=0.0)
    assert mixed.stride() == clips.stride()
    for i in range(6):
        share = float(targets[i, partner(i)])
        assert 0 < share < 1
        assert float(targets[i, i]) == pytest.approx(1 - share)
        expected = (1 - share) * clips[i].double() + share * clips[partner(i)].double()
        assert float((mixed[i].double() - expected).abs().max()) <= 0.5 + 1e-3
    assert len({float(targets[i, i]) for i in range(6)}) == 6


def test_cutmix_pastes_one_box_into_all_frames() -> None:
    clips, labels, seeds = some(16)
    mixed, targets = mix(clips, labels, seeds, mixup=0.0, cutmix=1.0)
    sizes = []
    for i in range(16):
        own, other = mixed[i] == clips[i], mixed[i] == clips[partner(i)]
        assert bool((own | other).all())
        pasted = (~own).any(0).any(0)  # (H, W)
        rows, columns = pasted.any(1).nonzero().flatten(), pasted.any(0).nonzero().flatten()
        area = len(rows) * len(columns)
        if area:
            inside = mixed[i][..., rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            source = clips[partner(i)][..., rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            assert torch.equal(inside, source)
        assert float(targets[i, partner(i)]) == pytest.approx(area / (12 * 16))
        sizes.append(area)
    assert len(set(sizes)) > 8


def test_parts_of_a_batch_mix_as_the_whole_does() -> None:
    clips, labels, seeds = some(8)
    whole = mix(clips, labels, seeds, mixup=0.8, cutmix=1.0)
    parts = [
        mix(clips[i : i + 2], labels[i : i + 2], seeds[i : i + 2], mixup=0.8, cutmix=1.0)
        for i in range(0, 8, 2)
    ]
    for i in range(2):
        assert torch.equal(torch.cat([part[i] for part in parts]), whole[i])


def test_shares_have_the_beta_distribution() -> None:
    """Half of the clips are mixed, half are cut; alpha 1 is uniform, a small one near 0 or 1."""
    n = 2000
    clips = torch.zeros(n, 3, 1, 4, 4, dtype=torch.uint8)
    labels = torch.arange(n)[:, None].float() % 2  # a partner has the other
    seeds = np.arange(n, dtype=np.uint64)

    def shares(mixup: float, cutmix: float) -> np.ndarray:
        _, targets = mix(clips, labels, seeds, mixup=mixup, cutmix=cutmix)
        return (targets - labels).abs().flatten().numpy()

    uniform = shares(1.0, 0.0)
    assert np.quantile(uniform, [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.03)
    narrow = shares(0.01, 0.0)
    assert ((narrow < 0.01) | (narrow > 0.99)).mean() > 0.9
    both, cuts = shares(1.0, 1.0), shares(0.0, 1.0)
    is_cut = both == cuts
    assert 0.45 < is_cut.mean() < 0.6
    assert (both == uniform).mean() > 0.4


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ((0.5, 0.5), (slice(3, 7), slice(6, 14))),
        ((0.0, 0.99), (slice(0, 2), slice(15, 20))),
    ],
)
def test_boxes_are_cut_off_at_the_borders(
    place: tuple[float, float], expected: tuple[slice, slice]
) -> None:
    assert box(10, 20, *place, side=0.4) == expected


def test_wrong_calls() -> None:
    clips, labels, seeds = some(3)
    with pytest.raises(ValueError, match="clips 3: give an even number"):
        mix(clips, labels, seeds, mixup=1, cutmix=0)
    with pytest.raises(ValueError, match="give one of them an alpha above 0"):
        mix(clips[:2], labels[:2], seeds[:2], mixup=0, cutmix=0)
    with pytest.raises(ValueError, match="give one for each of 2 clips"):
        mix(clips[:2], labels[:2], seeds, mixup=1, cutmix=0)


class Scores(nn.Module):
    """It gives the same scores to any clips."""

    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, clips: torch.Tensor) -> torch.Tensor:
        return self.scores[: len(clips)]


def test_a_mixed_clip_is_right_by_its_largest_share() -> None:
    """Two of three are: the second is scored as its smaller share."""
    network = Scores(torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [1.0, 2.0, 3.0]]))
    labels = torch.tensor([[0.6, 0.4, 0.0], [0.3, 0.0, 0.7], [0.1, 0.0, 0.9]])
    fabric: Any = SimpleNamespace(
        device=torch.device("cpu"), world_size=1, backward=lambda loss: loss.backward()
    )
    config = scratch(num_videos=300)
    pieces = Pieces(network, config, world_size=1)
    gradients = Gradients(network, network, config, pieces, fabric=fabric, multi_label=False)
    pixels = torch.zeros(3, 3, 2, 4, 4, dtype=torch.uint8)
    loss, right = gradients._pass(pixels, labels, num_pieces=1, is_last=True)
    assert loss == F.cross_entropy(network.scores, labels)
    assert right == 2
