"""Which clips make the batch of a step: a plan, a seed and a rank become lists of clip requests.

Sample position p is clip p of the run, counted over all ranks. It belongs to epoch p // n of n
videos, and its place in that epoch's permutation gives the video. All of this is a function of
(seed, position): starting at any step costs one permutation, and the number of processes or
micro-batches does not change which clips a step takes (each takes a contiguous part of one global
list).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch.utils.data import Sampler

from vcycle.data.grid import View
from vcycle.data.randomness import indexed_generator, indexed_seeds
from vcycle.data.request import ClipRequest, StepPart
from vcycle.schedule.arguments import as_index
from vcycle.schedule.baseline import Baseline
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape


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


def clip_requests(part: StepPart, *, num_videos: int) -> list[ClipRequest]:
    """The requests of one contiguous part of a step's global batch, in order."""
    indices = video_indices(part.positions, seed=part.seed, num_videos=num_videos)
    seeds = indexed_seeds(part.seed, "clip", part.positions)
    return [
        ClipRequest(index, part.step.shape, clip_seed, part=part)
        for index, clip_seed in zip(indices.tolist(), seeds.tolist(), strict=True)
    ]


class PlanSampler(Sampler[list[ClipRequest]]):
    """One list of clip requests for each micro-batch of each step of a plan, for one process.

    It is the ``batch_sampler`` of a torch ``DataLoader`` with ``collate_fn=vcycle.collate``, or
    what ``train_loader`` takes. An iteration is the whole run: a plan is one epoch to a trainer.

    Args:
        num_videos: the dataset's; ``seed`` is the run's.
        rank: which of ``world_size`` processes this is. Both are those of ``torch.distributed``
            once it is initialised, even after this is made, else 0 of 1.
        micro_batches: into how many a process's share is split further (gradient accumulation).
        first_step: the step to begin at: that of the checkpoint to resume from.

    Raises ValueError if ranks and micro-batches cannot share every batch evenly, TypeError if
    ``num_videos`` is no whole number.
    """

    def __init__(
        self,
        plan: Plan,
        num_videos: int,
        seed: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        micro_batches: int = 1,
        first_step: int = 0,
    ) -> None:
        if not isinstance(getattr(plan, "baseline", None), Baseline):
            raise TypeError(f"plan {type(plan).__name__}: give a vcycle.Plan")
        if not hasattr(num_videos, "__index__"):
            raise TypeError(f"num_videos {type(num_videos).__name__}: give len(dataset)")
        num_videos = as_index("num_videos", num_videos)
        seed = as_index("seed", seed)  # plain, as a checkpoint keeps it
        if num_videos < 1:
            raise ValueError(f"num_videos {num_videos}: give at least 1 video")
        first_step = as_index("first_step", first_step)
        micro_batches = as_index("micro_batches", micro_batches)
        if rank is not None:
            rank = as_index("rank", rank)
        if world_size is not None:
            world_size = as_index("world_size", world_size)
        if not 0 <= first_step <= len(plan):
            raise ValueError(f"first_step {first_step}: give 0 to {len(plan)}, the plan's steps")
        if micro_batches < 1:
            raise ValueError(f"micro_batches {micro_batches}: give at least 1")
        self.plan = plan
        self.num_videos = num_videos
        self.seed = seed
        self.micro_batches = micro_batches
        self.first_step = first_step
        self._given = rank, world_size
        self._next = first_step * micro_batches  # micro-batches of the plan before the next one
        self._resumes = False
        batches = {(kind.batch_size, kind.norm_group) for kind in plan.mini_batches()}
        self._batches = tuple(sorted(batches, key=lambda each: (each[0], each[1] or 0)))
        self._number = run_number(plan, num_videos)
        self._check_shares()

    @property
    def rank(self) -> int:
        """Which of ``world_size`` processes this is, from 0."""
        given, _ = self._given
        return given if given is not None else dist.get_rank() if _is_distributed() else 0

    @property
    def world_size(self) -> int:
        """Processes that share each step's batch."""
        _, given = self._given
        return given if given is not None else dist.get_world_size() if _is_distributed() else 1

    def __len__(self) -> int:
        return (len(self.plan) - self.first_step) * self.micro_batches

    def __iter__(self) -> Iterator[list[ClipRequest]]:
        self._check_shares()
        if not self._resumes:
            self._next = self.first_step * self.micro_batches
        self._resumes = False
        for place in range(self._next, len(self.plan) * self.micro_batches):
            index, micro_batch = divmod(place, self.micro_batches)
            part = StepPart(
                step=self.plan[index],
                baseline=self.plan.baseline,
                micro_batch=micro_batch,
                micro_batches=self.micro_batches,
                rank=self.rank,
                world_size=self.world_size,
                seed=self.seed,
                batches=self._batches,
                run=self._number,
                num_videos=self.num_videos,
            )
            self._next = place + 1
            yield clip_requests(part, num_videos=self.num_videos)

    def state_dict(self) -> dict[str, int]:
        """Where this iteration is, and of which run: plain numbers.

        torchdata's StatefulDataLoader keeps it, and knows how far its workers have run ahead. With
        a plain ``DataLoader`` of workers it is ahead of the training: resume by ``first_step``.
        """
        step, micro_batch = divmod(self._next, self.micro_batches)
        return {"step": step, "micro_batch": micro_batch, **self._run(), "plan": self._number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration go on where ``state`` was taken.

        The number of processes may differ, and between steps that of micro-batches. Raises
        ValueError if the state is of another run.
        """
        for name, value in self._run().items():
            if name != "micro_batches" and state.get(name) != value:
                raise ValueError(
                    f"{name} {value}: the state to resume from has {state.get(name)}; give "
                    f"PlanSampler the plan, videos and seed that the run began with"
                )
        if state.get("plan") != self._number:
            raise ValueError(
                "state: it is of another plan of as many steps and clips, or says none; "
                "give PlanSampler the plan that the run began with"
            )
        if state["micro_batch"] and state["micro_batches"] != self.micro_batches:
            raise ValueError(
                f"micro_batches {self.micro_batches}: the state is within a step, after "
                f"{state['micro_batch']} of {state['micro_batches']}; give as many"
            )
        self._next = state["step"] * self.micro_batches + state["micro_batch"]
        self._resumes = True

    def _run(self) -> dict[str, int]:
        """What a state to resume from must agree in."""
        return {
            "steps": len(self.plan),
            "clips": self.plan.num_clips,
            "num_videos": self.num_videos,
            "seed": self.seed,
            "micro_batches": self.micro_batches,
        }

    def _check_shares(self) -> None:
        rank, world_size = self.rank, self.world_size
        if not 0 <= rank < world_size:
            raise ValueError(
                f"rank {rank}: count from 0 to below world_size {world_size}; give both, or neither"
            )
        for kind in self.plan.mini_batches():
            if kind.batch_size % (world_size * self.micro_batches):
                raise ValueError(
                    f"batch size {kind.batch_size}: {world_size} processes x {self.micro_batches} "
                    f"micro-batches do not share it evenly; choose counts whose product divides it"
                )

    @property
    def largest_batch_bytes(self) -> int:
        """Bytes of pixels in the largest micro-batch of one rank."""
        parts = self.world_size * self.micro_batches
        return max(
            3 * kind.shape.num_pixels * kind.batch_size // parts
            for kind in self.plan.mini_batches()
        )


def run_number(plan: Plan, num_videos: int) -> int:
    """48 bits of a hash of what a plan is made of, and of how many videos it draws from.

    Numbers count to nine digits: another machine may compute a rate's last ones otherwise.
    """
    made_of = [_given(plan.baseline), _given(plan.multigrid), num_videos]
    text = json.dumps(made_of, sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")


def _given(value: Any) -> Any:
    """A value as JSON has it; of a dataclass the fields that are not as by default."""
    if is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: _given(each) for field, each in pairs if each != field.default}
    if isinstance(value, (tuple, list)):
        return [_given(each) for each in value]
    if isinstance(value, (bool, str)) or value is None:
        return value
    if value == int(value):  # 2 and 2.0 are one number
        return int(value)
    return f"{float(value):.9g}"


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


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
