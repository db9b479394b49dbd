"""A batch is augmented by its clips' places in the run, however it is cut into parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import vcycle
from tests.train.plans import BASELINE, PLAN, batch_of
from vcycle.data.batch import Batch
from vcycle.train.augment import augment, check_pairs, erase
from vcycle.train.mixing import mix
from vcycle.train.randaugment import randaugment

ALL = vcycle.Augmentation(num_ops=2, magnitude=8, erase=0.5, mixup=0.8, cutmix=1.0)


def noise_for(batch: Batch) -> Batch:
    """The batch with pixels and a label for each clip's place in the run."""
    pixels = []
    for position in batch.part.positions:
        rng = np.random.default_rng(int(position))
        size = (batch.shape.frames, batch.shape.height, batch.shape.width, 3)
        pixels.append(torch.from_numpy(rng.integers(256, size=size, dtype=np.uint8)))
    labels = torch.from_numpy(batch.part.positions) % 5
    return replace(batch, clips=torch.stack(pixels).permute(0, 4, 1, 2, 3), labels=labels)


@pytest.mark.parametrize("parts", [{"world_size": 2}, {"micro_batches": 4}])
def test_parts_are_those_of_the_whole(parts: dict[str, int]) -> None:
    step = PLAN[0]
    whole = augment(noise_for(batch_of(step)), ALL, num_classes=5)
    key = {"world_size": "rank", "micro_batches": "micro_batch"}[next(iter(parts))]
    cut = [
        augment(noise_for(batch_of(step, **parts, **{key: i})), ALL, num_classes=5)
        for i in range(*parts.values())
    ]
    assert torch.equal(torch.cat([part.clips for part in cut]), whole.clips)
    assert torch.equal(torch.cat([part.labels for part in cut]), whole.labels)
    assert whole.labels.shape == (step.batch_size, 5)
    assert whole.labels.sum(1) == pytest.approx(1.0)


def test_every_kind_draws_for_itself() -> None:
    """Switching one on or off leaves what the others draw; another step draws something else."""
    batch = noise_for(batch_of(PLAN[0]))
    ops = augment(batch, vcycle.Augmentation(num_ops=2), num_classes=5)
    seeds = batch.part.seeds("erase")
    erased = erase(torch.zeros_like(batch.clips), seeds, share=0.5) == 115
    both = augment(batch, vcycle.Augmentation(num_ops=2, erase=0.5), num_classes=5)
    assert torch.equal(both.clips[~erased], ops.clips[~erased])
    assert bool((both.clips[erased] == 115).all())
    later = replace(batch, part=replace(batch.part, step=PLAN[len(PLAN) - 1]))
    same_size = replace(later.part.step, batch_size=len(batch), shape=batch.shape)
    later = replace(later, part=replace(later.part, step=same_size))
    first = augment(batch, ALL, num_classes=5)
    assert not torch.equal(augment(later, ALL, num_classes=5).clips, first.clips)


def test_what_is_off_does_nothing() -> None:
    batch = noise_for(batch_of(PLAN[0]))
    same = augment(batch, vcycle.Augmentation(), num_classes=5)
    assert same.clips is batch.clips
    assert same.labels is batch.labels


def test_coarse_grids_are_changed_less() -> None:
    step = PLAN[0]
    share = step.shape.num_pixels / BASELINE.shape.num_pixels
    assert 0 < share < 1
    batch = noise_for(batch_of(step))
    grown = augment(batch, vcycle.Augmentation(num_ops=2, magnitude=8, grow=True), num_classes=5)
    weaker = randaugment(
        batch.clips, batch.part.seeds("randaugment"), num_ops=2, magnitude=8 * share
    )
    assert torch.equal(grown.clips, weaker)
    finest = noise_for(batch_of(replace(step, shape=BASELINE.shape)))
    plain = augment(finest, ALL, num_classes=5)
    assert torch.equal(augment(finest, replace(ALL, grow=True), num_classes=5).clips, plain.clips)


def test_labels_of_several_classes_are_mixed_too() -> None:
    batch = noise_for(batch_of(PLAN[0]))
    several = (torch.arange(len(batch))[:, None] % torch.tensor([2, 3]) == 0).float()
    out = augment(replace(batch, labels=several), vcycle.Augmentation(mixup=1.0), num_classes=2)
    one = augment(batch, vcycle.Augmentation(mixup=1.0), num_classes=5)
    assert torch.equal(out.clips, one.clips)
    differ = (several != several[torch.arange(len(batch)) ^ 1]).any(1)
    assert bool((out.labels[differ] != several[differ]).any())
    assert torch.equal(out.labels[~differ], several[~differ])


def test_boxes_are_erased_in_all_frames_of_some_clips() -> None:
    n = 400
    clips = torch.zeros(n, 3, 2, 20, 30, dtype=torch.uint8)
    out = erase(clips, np.arange(n, dtype=np.uint64), share=0.25)
    assert torch.equal(out, out[:, :1, :1].expand_as(out))
    areas = (out[:, 0, 0] == 115).double().mean((1, 2)).numpy()
    assert 0.19 < (areas > 0).mean() < 0.31
    assert areas.max() <= 0.34
    assert len(np.unique(areas)) > 30
    assert torch.equal(erase(clips, np.arange(n, dtype=np.uint64), share=0.0), clips)
    later = erase(clips[7:9], np.arange(7, 9, dtype=np.uint64), share=0.25)
    assert torch.equal(later, out[7:9])


def test_wrong_batches() -> None:
    batch = noise_for(batch_of(PLAN[0]))
    with pytest.raises(ValueError, match="it is an evaluation's; augment those of PlanSampler"):
        augment(replace(batch, part=None), ALL, num_classes=5)
    odd = noise_for(batch_of(PLAN[0], micro_batches=8, batches=((8, 4), (64, 8))))
    with pytest.raises(
        ValueError, match="8 processes x micro-batches take 1 each of a batch of 8; choose"
    ):
        augment(odd, ALL, num_classes=5)
    check_pairs(ALL, [64, 8], num_parts=4)
    with pytest.raises(ValueError, match="mixed in pairs, and 8 processes x micro-batches take 1"):
        check_pairs(ALL, [64, 8], num_parts=8)
    check_pairs(vcycle.Augmentation(num_ops=2), [64, 8], num_parts=8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_ops": -1}, "augmentation.num_ops -1: give 0 or more"),
        ({"magnitude": 11.0}, "augmentation.magnitude 11.0: give a number from 0 to 10"),
        ({"erase": 1.5}, "augmentation.erase 1.5: give a share from 0 to 1"),
        ({"mixup": -0.1}, "augmentation.mixup -0.1: give 0 or more"),
        ({"cutmix": float("nan")}, "augmentation.cutmix nan: give 0 or more"),
    ],
)
def test_wrong_settings(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vcycle.Augmentation(**settings)


def test_coarse_grids_are_erased_and_mixed_less_too() -> None:
    batch = noise_for(batch_of(PLAN[0]))
    strength = PLAN[0].shape.num_pixels / BASELINE.shape.num_pixels
    erased = vcycle.augment(batch, vcycle.Augmentation(erase=1.0, grow=True), num_classes=5)
    seeds = batch.part.seeds("erase")
    assert torch.equal(erased.clips, erase(batch.clips, seeds, share=strength))
    labels = torch.nn.functional.one_hot(batch.labels, 5).float()
    for mixup, cutmix in ((0.8, 0.0), (0.0, 1.0)):
        settings = vcycle.Augmentation(mixup=mixup, cutmix=cutmix, grow=True)
        found = vcycle.augment(batch, settings, num_classes=5)
        clips, shares = mix(
            batch.clips,
            labels,
            batch.part.seeds("mix"),
            mixup=strength * mixup,
            cutmix=strength * cutmix,
        )
        assert torch.equal(found.clips, clips)
        assert torch.equal(found.labels, shares)
