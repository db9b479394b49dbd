"""From clip requests to batches: worker processes, collation, the Batch, and its normalisation.

One loader serves a whole run: the shape travels with each request, so nothing is rebuilt when the
shape changes. Pixels stay uint8 until they are on the device.
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vcycle.data.dataset import BadVideo, Clip, ClipDataset, ClipRequest
from vcycle.data.sampler import PlanSampler, view_requests
from vcycle.schedule.shape import Shape

MEAN, STD = 0.45, 0.225  # of pixels in [0, 1], the same for the three channels


@dataclass(frozen=True)
class Batch:
    """Clips and what they show.

    ``clips``: (N, 3, T, H, W) uint8. ``labels``: (N,) int64, or (N, classes) float32 multi-hot.
    ``indices``: (N,) int64, the videos' places in the manifest. ``bad``: the videos that had to be
    replaced. Raises ValueError when these do not fit together.
    """

    clips: Tensor
    labels: Tensor
    indices: Tensor
    bad: tuple[BadVideo, ...] = ()

    def __post_init__(self) -> None:
        if self.clips.ndim != 5 or self.clips.shape[1] != 3 or self.clips.dtype != torch.uint8:
            raise ValueError(
                f"clips is {self.clips.dtype} {tuple(self.clips.shape)}; "
                "give uint8 of shape (N, 3, T, H, W)"
            )
        n = len(self.clips)
        single = self.labels.ndim == 1 and self.labels.dtype == torch.int64
        multi = self.labels.ndim == 2 and self.labels.dtype == torch.float32
        if not (single or multi) or len(self.labels) != n:
            raise ValueError(
                f"labels is {self.labels.dtype} {tuple(self.labels.shape)}; give int64 of shape "
                f"({n},), or float32 of shape ({n}, classes)"
            )
        if self.indices.shape != (n,) or self.indices.dtype != torch.int64:
            raise ValueError(
                f"indices is {self.indices.dtype} {tuple(self.indices.shape)}; "
                f"give int64 of shape ({n},)"
            )

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def shape(self) -> Shape:
        """T x H x W of the clips."""
        return Shape(*self.clips.shape[2:])

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; from pinned memory the copy does not block."""
        return replace(
            self,
            clips=self.clips.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
            indices=self.indices.to(device, non_blocking=True),
        )

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory (torch's loader calls this)."""
        return replace(
            self,
            clips=self.clips.pin_memory(),
            labels=self.labels.pin_memory(),
            indices=self.indices.pin_memory(),
        )


def normalize(clips: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 (N, C, T, H, W) -> contiguous floats, ((x / 255) - 0.45) / 0.225, where they are."""
    floats = clips.to(dtype, memory_format=torch.contiguous_format)
    return floats.mul_(1 / (255 * STD)).sub_(MEAN / STD)


def collate(clips: Sequence[Clip], *, num_classes: int, multi_label: bool) -> Batch:
    """Clips of one shape -> a Batch whose (N, 3, T, H, W) is a view of (N, T, H, W, 3)."""
    pixels = torch.from_numpy(np.stack([clip.pixels for clip in clips]))  # (N, T, H, W, 3)
    if multi_label:
        labels = torch.zeros(len(clips), num_classes)
        for row, clip in enumerate(clips):
            labels[row, list(clip.labels)] = 1
    else:
        labels = torch.tensor([clip.labels[0] for clip in clips])
    return Batch(
        clips=pixels.permute(0, 4, 1, 2, 3),
        labels=labels,
        indices=torch.tensor([clip.index for clip in clips]),
        bad=tuple(video for clip in clips for video in clip.bad),
    )


class _BatchDataset(Dataset[Batch]):
    """Makes a whole batch inside one worker."""

    def __init__(self, dataset: ClipDataset) -> None:
        self.dataset = dataset
        self.multi_label = dataset.manifest.multi_label

    def __getitem__(self, requests: list[ClipRequest]) -> Batch:
        clips = [self.dataset[request] for request in requests]
        num_classes = self.dataset.manifest.num_classes
        return collate(clips, num_classes=num_classes, multi_label=self.multi_label)


class TooManyBadVideos(ValueError):  # noqa: N818
    """More videos are bad than the run accepts; the message lists them."""


class Loader:
    """Iterates over batches, and keeps ``bad_videos``: path -> reason.

    Raises TooManyBadVideos once more than ``max_bad_share`` of the dataset's videos are bad.
    """

    def __init__(
        self, batches: DataLoader[Batch], *, num_videos: int, max_bad_share: float = 0.01
    ) -> None:
        self.batches = batches
        self.num_videos = num_videos
        self.max_bad_share = max_bad_share
        self.bad_videos: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        with _worker_count_is_the_callers():
            batches = iter(self.batches)
        for batch in batches:
            for video in batch.bad:
                self.bad_videos[video.path] = video.reason
            if len(self.bad_videos) > self.max_bad_share * self.num_videos:
                self._stop()
            yield batch

    def _stop(self) -> None:
        listed = "\n".join(f"  {path}: {reason}" for path, reason in self.bad_videos.items())
        raise TooManyBadVideos(
            f"{len(self.bad_videos)} of {self.num_videos} videos cannot be read, more than "
            f"{self.max_bad_share:.1%}; mend or remove them, or accept a larger share:\n{listed}"
        )


def train_loader(
    dataset: ClipDataset,
    sampler: PlanSampler,
    *,
    num_workers: int,
    max_bad_share: float = 0.01,
    pin_memory: bool = False,
) -> Loader:
    """The batches of a run, one for each list of requests that the sampler yields."""
    batches = _data_loader(dataset, sampler, num_workers=num_workers, pin_memory=pin_memory)
    return Loader(batches, num_videos=len(dataset), max_bad_share=max_bad_share)


def eval_loader(
    dataset: ClipDataset,
    shape: Shape,
    *,
    batch_size: int,
    num_clips: int = 1,
    num_crops: int = 1,
    num_workers: int,
    max_bad_share: float = 0.01,
    pin_memory: bool = False,
    rank: int = 0,
    world_size: int = 1,
) -> Loader:
    """Every view of every video, video by video; iterate as often as wanted.

    Of several ranks each gets every ``world_size``-th batch.
    """
    requests = view_requests(len(dataset), shape, num_clips=num_clips, num_crops=num_crops)
    lists = [requests[i : i + batch_size] for i in range(0, len(requests), batch_size)]
    lists = lists[rank::world_size]
    batches = _data_loader(dataset, lists, num_workers=num_workers, pin_memory=pin_memory)
    return Loader(batches, num_videos=len(dataset), max_bad_share=max_bad_share)


def _data_loader(
    dataset: ClipDataset,
    request_lists: PlanSampler | list[list[ClipRequest]],
    *,
    num_workers: int,
    pin_memory: bool,
) -> DataLoader[Batch]:
    with _worker_count_is_the_callers():
        return DataLoader(
            _BatchDataset(dataset),
            sampler=request_lists,
            batch_size=None,  # an item is a whole batch already
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=pin_memory,
            worker_init_fn=_start_worker,
        )


@contextmanager
def _worker_count_is_the_callers() -> Iterator[None]:
    """Torch warns of more workers than cores, which is what a loader-bound run may want."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def _start_worker(worker: int) -> None:
    # Ctrl-C reaches every process of the terminal; the main process ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
