"""Augmentation of a batch on its device, each clip by its own place in the run.

In: a batch of a plan, and an Augmentation. Out: the batch with other pixels, and if clips are mixed
with other labels. Nothing is drawn from a generator that lives on: a resumed run, and any number of
processes and micro-batches, give every clip the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vcycle.config.augmentation import Augmentation
from vcycle.data.batch import MEAN_PIXEL, Batch
from vcycle.data.request import StepPart
from vcycle.train.mixing import box, mix
from vcycle.train.randaugment import check_clips_and_seeds, randaugment

_ERASED_SHARES = (0.02, 0.33)
_ERASED_ASPECTS = (0.3, 1 / 0.3)


def augment(batch: Batch, settings: Augmentation, *, num_classes: int) -> Batch:
    """The batch with its clips changed as ``settings`` say: RandAugment, then erasing, then mixing.

    Clips stay (N, 3, T, H, W) uint8, on their device and in their memory format. If clips are
    mixed, labels become (N, classes) float32, the shares of classes that ``F.cross_entropy`` takes
    as well; else they are as before. What is off costs nothing.

    Raises ValueError if the batch is an evaluation's, or is to be mixed and some batch of its plan
    is in parts of an odd number of clips.
    """
    part = batch.part
    if part is None:
        raise ValueError("batch: it is an evaluation's; augment those of PlanSampler")
    check_pairs(settings, [size for size, _ in part.batches], num_parts=part.num_parts)
    strength = _strength(part) if settings.grow else 1.0
    clips, labels = batch.clips, batch.labels
    if settings.num_ops:
        clips = randaugment(
            clips,
            part.seeds("randaugment"),
            num_ops=settings.num_ops,
            magnitude=strength * settings.magnitude,
        )
    if settings.erase:
        clips = erase(clips, part.seeds("erase"), share=strength * settings.erase)
    if settings.mixes:
        clips, labels = mix(
            clips,
            labels if labels.ndim == 2 else F.one_hot(labels, num_classes).float(),
            part.seeds("mix"),
            mixup=strength * settings.mixup,
            cutmix=strength * settings.cutmix,
        )
    return replace(batch, clips=clips, labels=labels)


def _strength(part: StepPart) -> float:
    """The share of the baseline's pixels that clips of this step have, at most 1."""
    return min(1.0, part.step.shape.num_pixels / part.baseline.shape.num_pixels)


def erase(clips: Tensor, seeds: NDArray[np.uint64], *, share: float) -> Tensor:
    """Fill a box with the mean pixel, in all frames of a ``share`` of the clips.

    In and out: (N, 3, T, H, W) uint8. ``seeds``, (N,), decide which and where: boxes are 2% to 33%
    of the area, with sides of 0.3 : 1 to 1 : 0.3 (Zhong et al., 2020), cut off at the borders.
    Raises ValueError if the clips or seeds are of another kind.
    """
    check_clips_and_seeds(clips, seeds)
    out = clips.clone()
    height, width = clips.shape[3:]
    low, high = map(math.log, _ERASED_ASPECTS)
    for number, seed in enumerate(seeds.tolist()):
        rng = np.random.default_rng(seed)
        if rng.random() >= share:
            continue
        row, column = rng.random(2)
        side, aspect = math.sqrt(rng.uniform(*_ERASED_SHARES)), math.exp(rng.uniform(low, high))
        rows, columns = box(height, width, row, column, side=side, aspect=aspect)
        out[number, :, :, rows, columns] = MEAN_PIXEL
    return out


def check_pairs(settings: Augmentation, batch_sizes: Iterable[int], *, num_parts: int) -> None:
    """Raise ValueError if clips are mixed in pairs, which batches in parts would split."""
    for size in batch_sizes if settings.mixes else ():
        clips = size // num_parts
        if clips % 2:
            raise ValueError(
                f"augmentation.mixup, augmentation.cutmix: clips are mixed in pairs, and "
                f"{num_parts} processes x micro-batches take {clips} each of a batch of {size}; "
                f"choose a batch size and counts that leave each an even number"
            )
