"""The two loaders of a run: the batches of its plan, and the views of an evaluation.

In: a dataset, and a sampler or a shape. Out: a Loader.
"""

from __future__ import annotations

import torch

from vcycle.data.dataset import ClipDataset
from vcycle.data.loader import PREFETCH_BYTES, Loader
from vcycle.data.sampler import PlanSampler, view_requests
from vcycle.schedule.shape import Shape


def train_loader(
    dataset: ClipDataset,
    sampler: PlanSampler,
    *,
    num_workers: int,
    max_bad_share: float = 0.01,
    device: torch.device | str | None = None,
) -> Loader:
    """The batches of a run, one for each list of requests that the sampler yields.

    Raises ValueError if the sampler draws from another number of videos than the dataset has.
    """
    if sampler.num_videos != len(dataset):
        raise ValueError(
            f"num_videos {sampler.num_videos} of the sampler: the dataset has {len(dataset)}; give "
            f"PlanSampler the number of videos in the split"
        )
    return Loader(
        dataset,
        sampler,
        num_workers=num_workers,
        largest_batch_bytes=sampler.largest_batch_bytes,
        max_bad_share=max_bad_share,
        device=device,
    )


def eval_loader(
    dataset: ClipDataset,
    shape: Shape,
    *,
    batch_size: int,
    num_clips: int = 1,
    num_crops: int = 1,
    num_workers: int,
    prefetch_bytes: int = PREFETCH_BYTES,
    max_bad_share: float = 0.01,
    device: torch.device | str | None = None,
    threads: bool = False,
    rank: int = 0,
    world_size: int = 1,
) -> Loader:
    """Every view of every video, video by video; rank r gets every ``world_size``-th batch.

    A view that cannot be read is replaced by another video's, as in training, and has -1 in
    ``Batch.indices``: it is not to be scored.

    Raises ValueError if a batch or a video has fewer than one clip, or crops are not 1 or 3.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size {batch_size}: give at least 1")
    requests = view_requests(len(dataset), shape, num_clips=num_clips, num_crops=num_crops)
    lists = [requests[i : i + batch_size] for i in range(0, len(requests), batch_size)]
    return Loader(
        dataset,
        lists[rank::world_size],
        num_workers=num_workers,
        largest_batch_bytes=3 * shape.num_pixels * batch_size,
        prefetch_bytes=prefetch_bytes,
        max_bad_share=max_bad_share,
        device=device,
        threads=threads,
    )
