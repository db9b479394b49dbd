"""Which clips make the batch of a step: a plan, a seed and a rank become lists of clip requests.

Sample position p is clip p of the run, counted over all ranks. It belongs to epoch p // n of n
videos, and its place in that epoch's permutation gives the video. All of this is a function of
(seed, position): starting at any step costs one permutation, and the number of processes or
micro-batches does not change which clips a step takes (each takes a contiguous part of one global
list).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vcycle.data.dataset import ClipRequest
from vcycle.data.grid import View
from vcycle.data.randomness import indexed_generator, indexed_seeds
from vcycle.schedule.shape import Shape


class PlannedStep(Protocol):
    """What the sampler needs of a plan's step."""

    @property
    def shape(self) -> Shape: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def first_sample(self) -> int: ...


class PlannedMiniBatch(Protocol):
    """A kind of step that a plan has."""

    @property
    def shape(self) -> Shape: ...
    @property
    def batch_size(self) -> int: ...


class StepPlan(Protocol):
    """A sequence of steps; ``vcycle.schedule.plan.Plan`` is one."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> PlannedStep: ...
    def mini_batches(self) -> Sequence[PlannedMiniBatch]: ...


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_videos: int) -> NDArray[np.int64]:
    return indexed_generator(seed, "shuffle", epoch).permutation(num_videos)


def video_indices(positions: NDArray[np.int64], *, seed: int, num_videos: int) -> NDArray[np.int64]:
    """(n,) the video at each sample position; every epoch shows every video once."""
    indices = np.empty_like(positions)
    epochs, places = np.divmod(positions, num_videos)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        indices[here] = _permutation(seed, int(epoch), num_videos)[places[here]]
    return indices


def sample_positions(step: PlannedStep, *, part: int = 0, num_parts: int = 1) -> NDArray[np.int64]:
    """(n,) the positions in the run of the clips of one contiguous part of a step's batch."""
    size = step.batch_size // num_parts
    first = step.first_sample + part * size
    return np.arange(first, first + size, dtype=np.int64)


def clip_requests(
    step: PlannedStep, *, seed: int, num_videos: int, part: int = 0, num_parts: int = 1
) -> list[ClipRequest]:
    """The requests of one contiguous part of a step's global batch, in order."""
    positions = sample_positions(step, part=part, num_parts=num_parts)
    indices = video_indices(positions, seed=seed, num_videos=num_videos)
    seeds = indexed_seeds(seed, "clip", positions)
    return [
        ClipRequest(index, step.shape, clip_seed)
        for index, clip_seed in zip(indices.tolist(), seeds.tolist(), strict=True)
    ]


class PlanSampler:
    """One list of clip requests for each micro-batch of each step of a plan, for one rank.

    ``micro_batches`` splits a rank's share further (gradient accumulation); ``first_step`` resumes.
    Raises ValueError if ranks and micro-batches cannot share a batch evenly.
    """

    def __init__(
        self,
        plan: StepPlan,
        num_videos: int,
        seed: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        micro_batches: int = 1,
        first_step: int = 0,
    ) -> None:
        if num_videos < 1:
            raise ValueError(f"num_videos {num_videos}: give at least 1 video")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank}: count from 0 to below world_size {world_size}")
        if not 0 <= first_step <= len(plan):
            raise ValueError(f"first_step {first_step}: give 0 to {len(plan)}, the plan's steps")
        if micro_batches < 1:
            raise ValueError(f"micro_batches {micro_batches}: give at least 1")
        self.plan = plan
        self.num_videos = num_videos
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.micro_batches = micro_batches
        self.first_step = first_step
        for kind in plan.mini_batches():
            if kind.batch_size % (world_size * micro_batches):
                raise ValueError(
                    f"batch size {kind.batch_size}: {world_size} processes x {micro_batches} "
                    f"micro-batches do not share it evenly; choose counts whose product divides it"
                )

    def __len__(self) -> int:
        return (len(self.plan) - self.first_step) * self.micro_batches

    def __iter__(self) -> Iterator[list[ClipRequest]]:
        for index in range(self.first_step, len(self.plan)):
            step = self.plan[index]
            for micro in range(self.micro_batches):
                yield clip_requests(
                    step,
                    seed=self.seed,
                    num_videos=self.num_videos,
                    # What all ranks hold at one time is contiguous too: norm groups may span ranks.
                    part=micro * self.world_size + self.rank,
                    num_parts=self.world_size * self.micro_batches,
                )

    @property
    def largest_batch_bytes(self) -> int:
        """Bytes of pixels in the largest micro-batch of one rank."""
        parts = self.world_size * self.micro_batches
        return max(
            3 * kind.shape.num_pixels * kind.batch_size // parts
            for kind in self.plan.mini_batches()
        )


def view_requests(
    num_videos: int, shape: Shape, *, num_clips: int = 1, num_crops: int = 1
) -> list[ClipRequest]:
    """Every view of every video, video by video: the requests of an evaluation.

    Raises ValueError if a video has fewer than one clip, or crops are not 1 or 3.
    """
    View(num_clips=num_clips, num_crops=num_crops)  # checks the numbers
    views = [
        View(clip, num_clips, crop, num_crops)
        for clip in range(num_clips)
        for crop in range(num_crops)
    ]
    return [ClipRequest(index, shape, index, view) for index in range(num_videos) for view in views]
