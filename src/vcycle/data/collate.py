"""Collation: what a dataset returned for the requests of one micro-batch becomes a ``Batch``.

A torch ``DataLoader`` calls this in its workers. It is where clips of any dataset enter, so it is
where they are checked against what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vcycle.data.batch import Batch
from vcycle.data.dataset import Clip
from vcycle.data.labels import checked_label
from vcycle.data.request import StepPart
from vcycle.data.to_shape import request_of

_FIX = (
    "return (vcycle.to_shape(frames, request), label), or vcycle.Clip(pixels, label, request) if "
    "you make the clip yourself"
)


def collate(
    clips: Sequence[Clip | tuple[Tensor, int | Tensor]], *, num_classes: int | None = None
) -> Batch:
    """The ``collate_fn`` of a ``DataLoader`` whose batch sampler is a PlanSampler.

    ``clips`` are what the dataset returned: each a Clip, or a pair of what ``to_shape`` returned
    and a label. Labels are classes from 0, or (classes,) floats, multi-hot. With ``num_classes``
    (``functools.partial(vcycle.collate, num_classes=400)``) they are checked against it.

    Raises ValueError if a clip has another shape than its request, a label is out of range, or the
    clips are not those of one micro-batch of a step; TypeError if the dataset returned neither.
    """
    made = [_clip(each) for each in clips]
    for clip in made:
        _check_pixels(clip)
    part = _common_part(made)
    pixels = torch.stack([clip.pixels for clip in made])  # (N, T, H, W, 3)
    return Batch(
        clips=pixels.permute(0, 4, 1, 2, 3),  # (N, 3, T, H, W), a view
        labels=_labels(made, num_classes),
        indices=torch.tensor([clip.index for clip in made]),
        bad=tuple(video for clip in made for video in clip.bad),
        part=part,
    )


def _clip(returned: Any) -> Clip:
    if isinstance(returned, Clip):
        return returned
    if isinstance(returned, (tuple, list)) and len(returned) > 2:
        raise TypeError(
            f"dataset: it returned {len(returned)} values; collate takes pairs (clip, label): give "
            f"the rest in a collate_fn of your own, which calls vcycle.collate on the pairs"
        )
    if not (isinstance(returned, (tuple, list)) and len(returned) == 2):
        raise TypeError(f"dataset: it returned a {type(returned).__name__}; {_FIX}")
    pixels, label = returned
    request = request_of(pixels)
    if request is None:
        raise TypeError(
            f"dataset: it returned a {type(pixels).__name__} that knows no request: to_shape did "
            f"not return it, or it was changed since; {_FIX}"
        )
    return Clip(pixels, label, request)


def _check_pixels(clip: Clip) -> None:
    pixels, expected = clip.pixels, clip.request.clip_shape
    if not isinstance(pixels, Tensor) or pixels.dtype != torch.uint8 or pixels.shape != expected:
        kind = getattr(pixels, "dtype", type(pixels).__name__)
        raise ValueError(
            f"clip {kind} {tuple(getattr(pixels, 'shape', ()))}: the request asks for uint8 of "
            f"shape {expected}, (T, H, W, 3); return vcycle.to_shape(frames, request), and leave "
            f"floats to vcycle.normalize(batch.clips)"
        )


def _common_part(clips: Sequence[Clip]) -> StepPart | None:
    """The part of a step that all the clips are for, None in an evaluation."""
    parts = {clip.request.part: None for clip in clips}
    part = next(iter(parts))
    if len(parts) > 1:
        raise ValueError(
            f"batch: its clips are of {' and '.join(map(str, parts))}; give DataLoader the "
            f"PlanSampler as batch_sampler, so that a batch is one list of requests"
        )
    if part is not None and len(clips) != part.num_clips:
        raise ValueError(
            f"batch of {len(clips)} clips: {part} has {part.num_clips} in each of "
            f"{part.num_parts} parts; let nothing split, pad or shard the batches of PlanSampler, "
            f"and have the dataset return a clip for each request"
        )
    return part


def _labels(clips: Sequence[Clip], num_classes: int | None) -> Tensor:
    """(N,) int64, or (N, classes) float32"""
    labels = [checked_label(c.label, video=c.index, num_classes=num_classes) for c in clips]
    if len({label.shape for label in labels}) > 1:
        shapes = sorted({tuple(label.shape) for label in labels})
        raise ValueError(f"labels of shapes {shapes}: give all clips one class, or all a vector")
    return torch.stack(labels)
