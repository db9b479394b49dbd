"""Mixup and CutMix: a clip and its label become a mixture of two.

In: clips, their labels as shares of classes, and a seed for each. Out: the mixtures. A clip is
mixed with its neighbour: the first of a batch with the second, the third with the fourth. Videos
come in random order, so a neighbour is as random a partner as any, and pairs stay together however
a batch is cut into processes and micro-batches of an even number of clips.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcycle.train.randaugment import check_clips_and_seeds


def mix(
    clips: Tensor, labels: Tensor, seeds: NDArray[np.uint64], *, mixup: float, cutmix: float
) -> tuple[Tensor, Tensor]:
    """Mix (N, 3, T, H, W) uint8 clips and (N, classes) float labels with those of neighbours.

    ``mixup`` and ``cutmix`` are alphas of Beta(alpha, alpha), 0 for none of that kind; with both,
    half the clips get each. The partner's share is drawn for each clip, from its seed of (N,). A
    box of CutMix is the same in all frames, and its share of the area is the label's (Yun et al.,
    2019, equation 2). Returns new clips in the same memory format, and new labels.

    Raises ValueError if N is odd or ``clips`` or ``seeds`` are of another kind; without an alpha.
    """
    check_clips_and_seeds(clips, seeds)
    if len(clips) % 2:
        raise ValueError(f"clips {len(clips)}: give an even number, as neighbours are mixed")
    if not max(mixup, cutmix) > 0:
        raise ValueError("mixup 0 and cutmix 0: give one of them an alpha above 0")
    height, width = clips.shape[3:]
    drawn = [_draw(seed, height, width, mixup=mixup, cutmix=cutmix) for seed in seeds.tolist()]
    values = torch.tensor(drawn, dtype=torch.float32).to(clips.device, non_blocking=True)
    share, top, bottom, left, right = values.unsqueeze(2).unbind(1)  # each (N, 1)
    rows = torch.arange(height, device=clips.device)
    columns = torch.arange(width, device=clips.device)
    of_rows, of_columns = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    of_pixels = share[..., None] * (of_rows[:, :, None] & of_columns[:, None])  # (N, H, W)
    mixed = torch.lerp(clips.float(), _neighbours(clips).float(), of_pixels[:, None, None])
    of_labels = share * (bottom - top) * (right - left) / (height * width)
    return mixed.round_().to(torch.uint8), torch.lerp(labels, _neighbours(labels), of_labels)


def _neighbours(values: Tensor) -> Tensor:
    """(N, ...) with each pair swapped, in the same memory format."""
    swapped = torch.empty_like(values)
    swapped[0::2], swapped[1::2] = values[1::2], values[0::2]
    return swapped


def _draw(
    seed: int, height: int, width: int, *, mixup: float, cutmix: float
) -> tuple[float, int, int, int, int]:
    """The partner's share of pixels in a box, and the box: top, bottom, left, right.

    The box is the whole image or, of CutMix, wholly the partner's.
    """
    rng = np.random.default_rng(seed)
    cuts, row, column = rng.random(3)
    is_cut = cutmix > 0 and (mixup == 0 or cuts < 0.5)
    alpha = cutmix if is_cut else mixup
    share = 1 - rng.beta(alpha, alpha)
    if not is_cut:
        return share, 0, height, 0, width
    rows, columns = box(height, width, row, column, side=math.sqrt(share))
    return 1.0, rows.start, rows.stop, columns.start, columns.stop


def box(
    height: int, width: int, row: float, column: float, *, side: float, aspect: float = 1.0
) -> tuple[slice, slice]:
    """Rows and columns of a box, cut off at the borders.

    ``row`` and ``column``, from 0 to 1, are the place of its centre; ``side`` is its height and
    width in shares of the image's, for an ``aspect`` (height over width) of 1.
    """
    spans = []
    for size, centre, factor in ((height, row, aspect**0.5), (width, column, aspect**-0.5)):
        length = min(round(side * factor * size), size)
        first = int(centre * size) - length // 2
        spans.append(slice(max(first, 0), min(first + length, size)))
    return spans[0], spans[1]
