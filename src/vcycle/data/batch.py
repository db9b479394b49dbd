"""The ``Batch``: clips and labels as tensors that check their shapes, and the normalisation.

Decoded clips go in; what a training loop iterates over comes out. Pixels stay uint8 until they are
on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vcycle.data.bad_videos import BadVideo
from vcycle.data.request import StepPart
from vcycle.schedule.plan import Step
from vcycle.schedule.shape import Shape

MEAN, STD = 0.45, 0.225  # of pixels in [0, 1], the same for the three channels
MEAN_PIXEL = round(255 * MEAN)  # of 255: normalised it is about zero


@dataclass(frozen=True)
class Batch:
    """Clips, their labels and the videos that they come from.

    ``clips``: (N, 3, T, H, W) uint8. ``labels``: (N,) int64, or (N, classes) float32 multi-hot.
    ``indices``: (N,) int64, the videos' places in the dataset, -1 in an evaluation where a view's
    own video is bad and its pixels and label are another's. ``bad``: the videos that were replaced.
    ``part``: the part of a plan's step that this is, None in an evaluation. Raises ValueError if
    these do not fit together.
    """

    clips: Tensor
    labels: Tensor
    indices: Tensor
    bad: tuple[BadVideo, ...] = ()
    part: StepPart | None = None

    def __post_init__(self) -> None:
        if self.clips.ndim != 5 or self.clips.shape[1] != 3 or self.clips.dtype != torch.uint8:
            raise ValueError(
                f"clips {self.clips.dtype} {tuple(self.clips.shape)}: "
                "give uint8 of shape (N, 3, T, H, W)"
            )
        n = len(self.clips)
        single = self.labels.ndim == 1 and self.labels.dtype == torch.int64
        multi = self.labels.ndim == 2 and self.labels.dtype == torch.float32
        if not (single or multi) or len(self.labels) != n:
            raise ValueError(
                f"labels {self.labels.dtype} {tuple(self.labels.shape)}: give int64 of shape "
                f"({n},), or float32 of shape ({n}, classes)"
            )
        if self.indices.shape != (n,) or self.indices.dtype != torch.int64:
            raise ValueError(
                f"indices {self.indices.dtype} {tuple(self.indices.shape)}: "
                f"give int64 of shape ({n},)"
            )

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def shape(self) -> Shape:
        """T x H x W of the clips."""
        return Shape(*self.clips.shape[2:])

    @property
    def step(self) -> Step:
        """The step of the plan that this batch, or micro-batch, is for.

        Its batch size counts the clips of all processes and micro-batches. Raises ValueError if
        the batch is an evaluation's.
        """
        if self.part is None:
            raise ValueError("batch: it is an evaluation's and has no step; train on PlanSampler's")
        return self.part.step

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; from pinned memory the copy does not block."""
        return self._with(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory; a ``DataLoader`` with ``pin_memory`` calls it."""
        return self._with(lambda tensor: tensor.pin_memory())

    def _with(self, change: Callable[[Tensor], Tensor]) -> Batch:
        clips, labels, indices = change(self.clips), change(self.labels), change(self.indices)
        return replace(self, clips=clips, labels=labels, indices=indices)


def normalize(
    clips: Tensor,
    *,
    mean: float = MEAN,
    std: float = STD,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """uint8 (N, C, T, H, W) -> floats, ((x / 255) - mean) / std, on the same device.

    Decoded clips lie in memory as ``torch.channels_last_3d``; give that as ``memory_format`` for a
    model whose weights do, and nothing is rearranged.

    Raises ValueError if ``clips`` is not uint8.
    """
    if not isinstance(clips, Tensor):
        raise TypeError(f"clips {type(clips).__name__}: give a tensor, such as batch.clips")
    if clips.dtype != torch.uint8:
        raise ValueError(f"clips {clips.dtype}: give uint8, from 0 to 255")
    floats = clips.to(dtype, memory_format=memory_format)
    return floats.mul_(1 / (255 * std)).sub_(mean / std)


def label_tensor(
    labels: Sequence[tuple[int, ...]], *, num_classes: int, multi_label: bool
) -> Tensor:
    """(N,) int64 classes, or (N, classes) float32 multi-hot."""
    if not multi_label:
        return torch.tensor([each[0] for each in labels], dtype=torch.int64)
    targets = torch.zeros(len(labels), num_classes)
    for row, each in enumerate(labels):
        targets[row, list(each)] = 1
    return targets
