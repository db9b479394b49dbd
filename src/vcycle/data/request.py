"""A clip request: which video, at which shape, from which seed, for which step of a plan.

It is what a dataset is indexed with. It carries all that a clip depends on, so the processes that
read clips hold no schedule; and the step comes back with the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vcycle.data.grid import Grid, GridRange, View, draw_grid, view_grid
from vcycle.data.metadata import VideoInfo
from vcycle.data.randomness import indexed_seeds
from vcycle.schedule.baseline import Baseline
from vcycle.schedule.plan import Step
from vcycle.schedule.shape import Shape

# The paper scales the shorter side to 256 to 340 pixels for crops of 224 (section 4).
_LEAST_SCALE, _GREATEST_SCALE = 256 / 224, 340 / 224
_FOR_PLANS = (
    "a clip request is no number: the dataset takes integers; give the loader "
    "vcycle.ClipsOf(dataset), around torch's Subset or ConcatDataset of integers too, or a dataset "
    "that takes requests, which picks its videos itself"
)


@dataclass(frozen=True)
class StepPart:
    """A step of a plan, and which part of its global batch this is.

    Args:
        step: the step; its ``batch_size`` counts the clips of all parts.
        baseline: the baseline of the step's plan.
        micro_batch: which of this process's ``micro_batches`` (gradient accumulation), from 0.
        rank: which of ``world_size`` processes, from 0.
        seed: the run's.
        batches: clips and norm group of every kind of batch of the plan.
        run: a number that another plan, or another number of videos, does not have.
        num_videos: of how many the run draws; 0 if it is not said.
    """

    step: Step
    baseline: Baseline
    micro_batch: int = 0
    micro_batches: int = 1
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    batches: tuple[tuple[int, int | None], ...] = ()
    run: int = 0
    num_videos: int = 0

    def to(self, device: object) -> StepPart:
        """Itself: trainers move what is in a batch to a device, and this has nothing to move."""
        return self

    @property
    def part(self) -> int:
        """Place among the contiguous parts of the global batch, from 0.

        What all ranks hold at one time is contiguous too: norm groups may span ranks.
        """
        return self.micro_batch * self.world_size + self.rank

    @property
    def num_parts(self) -> int:
        """Equal parts that the global batch is cut into."""
        return self.micro_batches * self.world_size

    @property
    def num_clips(self) -> int:
        """Clips of this part."""
        return self.step.batch_size // self.num_parts

    @property
    def positions(self) -> NDArray[np.int64]:
        """(num_clips,) the clips' positions in the run, counted over all processes."""
        first = self.step.first_sample + self.part * self.num_clips
        return np.arange(first, first + self.num_clips, dtype=np.int64)

    @property
    def dropout_seeds(self) -> NDArray[np.uint64]:
        """(num_clips,) one for each clip, for ``vcycle.set_dropout_seeds``."""
        return self.seeds("dropout")

    def seeds(self, purpose: str) -> NDArray[np.uint64]:
        """(num_clips,) one for each clip, by its position in the run; each purpose has others."""
        return indexed_seeds(self.seed, purpose, self.positions)

    @property
    def is_last(self) -> bool:
        """Whether this is the process's last micro-batch of the step: the optimizer steps next."""
        return self.micro_batch == self.micro_batches - 1

    def __str__(self) -> str:
        micro = f", micro-batch {self.micro_batch}" if self.micro_batches > 1 else ""
        return f"step {self.step.index}{micro}"


@dataclass(frozen=True)
class ClipRequest:
    """Which video (its index in the dataset), at which shape, from which 64-bit seed.

    Without a ``view`` the sampling grid is drawn from the seed; with one it is that view's.
    ``part`` says which step the clip is for, None in an evaluation.
    """

    index: int
    shape: Shape
    seed: int
    view: View | None = None
    part: StepPart | None = None

    @property
    def clip_shape(self) -> tuple[int, int, int, int]:
        """(T, H, W, 3) of the clip's pixels."""
        return self.shape.frames, self.shape.height, self.shape.width, 3

    @property
    def num_bytes(self) -> int:
        """Of the clip's pixels."""
        return 3 * self.shape.num_pixels

    def __index__(self) -> int:
        """A request is no number: a dataset that takes it for one is not made for plans."""
        raise TypeError(_FOR_PLANS)

    def __lt__(self, _: object) -> bool:
        raise TypeError(_FOR_PLANS)

    def grid_range(self) -> GridRange:
        """The paper's range of grids around the plan's base shape: short sides of 256 to 340 : 224.

        The base temporal stride is 1. An evaluation's base shape is its own.
        """
        base = self.shape if self.part is None else self.part.baseline.shape
        side = min(base.height, base.width)
        return GridRange(base, 1, (_LEAST_SCALE * side, _GREATEST_SCALE * side))

    def grid(
        self, info: VideoInfo, grid_range: GridRange | None = None, *, flip: bool = True
    ) -> Grid:
        """The sampling grid of this clip in a video: its frames, its crop, whether it is mirrored.

        ``flip`` says whether a mirrored clip has the same label. Without a ``grid_range`` it is
        that of ``grid_range()``. Raises ValueError if it is around another base shape than the
        plan's.
        """
        grid_range = grid_range or self.grid_range()
        if self.part is not None and grid_range.base != self.part.baseline.shape:
            raise ValueError(
                f"grid range around {grid_range.base}: the plan's base shape is "
                f"{self.part.baseline.shape}; give GridRange that one, and short sides for it"
            )
        if self.view is not None:
            return view_grid(info, self.shape, grid_range, view=self.view)
        rng = np.random.default_rng(self.seed)
        return draw_grid(info, self.shape, grid_range, rng=rng, flip=flip)


def check_request(request: object, *, num_videos: int | None = None) -> None:
    """Raise TypeError unless a dataset was indexed with a ClipRequest, of one of its videos."""
    if not isinstance(request, ClipRequest):
        raise TypeError(
            f"index {type(request).__name__}: this dataset is indexed with a ClipRequest; give "
            f"DataLoader collate_fn=vcycle.collate, no shuffle, and to train "
            f"batch_sampler=vcycle.PlanSampler(...), to evaluate "
            f"sampler=vcycle.view_requests(...)[rank::world_size] and a batch_size"
        )
    if num_videos is not None and not 0 <= request.index < num_videos:
        raise IndexError(
            f"video {request.index}: the dataset has {num_videos}; give PlanSampler len(dataset)"
        )
