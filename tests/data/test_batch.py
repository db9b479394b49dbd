"""Batches: they check themselves, and their labels and pixels are as a model wants them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vcycle.data.batch import Batch, label_tensor, normalize
from vcycle.schedule.shape import Shape


def test_labels_become_classes_or_many_hot():
    labels = label_tensor([(1,), (0,)], num_classes=3, multi_label=False)
    assert labels.tolist() == [1, 0]
    assert labels.dtype == torch.int64
    labels = label_tensor([(0, 2), ()], num_classes=3, multi_label=True)
    assert labels.tolist() == [[1, 0, 1], [0, 0, 0]]


def test_a_batch_checks_itself():
    good = Batch(
        torch.zeros(2, 3, 1, 4, 4, dtype=torch.uint8), torch.zeros(2).long(), torch.arange(2)
    )
    assert good.to("cpu").shape == Shape(1, 4, 4)
    for change, message in (
        ({"clips": good.clips.float()}, "clips torch.float32"),
        ({"clips": good.clips[:, :2]}, r"clips torch.uint8 \(2, 2, 1, 4, 4\)"),
        ({"labels": good.labels[:1]}, r"labels torch.int64 \(1,\)"),
        ({"labels": torch.zeros(2)}, "labels torch.float32"),
        ({"indices": good.indices.int()}, "indices torch.int32"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(good, **change)


def test_normalisation_is_the_papers():
    clips = torch.randint(0, 256, (2, 4, 5, 6, 3), dtype=torch.uint8).permute(0, 4, 1, 2, 3)
    x = normalize(clips)
    assert x.is_contiguous()
    torch.testing.assert_close(x, (clips / 255 - 0.45) / 0.225)
    with pytest.raises(TypeError, match=r"clips list: give a tensor, such as batch\.clips"):
        normalize([clips])
