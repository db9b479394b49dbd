"""The constant-shape run that one would do without multigrid.

In: what a training recipe states (mini-batch shape, steps, learning rate). Out: a value that a
Plan turns into a schedule of grids. The paper changes nothing else about a run (section 4: "the
exact same recipe, aside from multigrid specific changes").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from vcycle.schedule.arguments import as_tuple, check_type, keep, number, whole_number
from vcycle.schedule.shape import Shape


@dataclass(frozen=True)
class LearningRate:
    """The baseline's learning rate as a function of stage and progress.

    Args:
        base: the rate at the baseline's batch size, after the warm-up.
        decay: ``step`` is ``base * gamma ** stage``; ``cosine`` falls from ``base`` to
            ``base * final`` over half a period; ``one-cycle`` rises from ``base / 25`` over the
            first ``rise`` of the run, then falls to ``base * final``.
        gamma: the factor of a ``step`` at the end of every stage.
        final: the last rate of ``cosine`` and ``one-cycle``, as a share of ``base``.
        rise: the share of the run in which ``one-cycle`` rises.
        warmup_steps: steps of the baseline in which the rate rises in a line; 0 for none.
        warmup_start: the rate from which it rises.

    >>> LearningRate(0.8, decay="cosine").at(stage=0, progress=0.5)
    0.4
    """

    base: float
    decay: Literal["step", "cosine", "one-cycle"] = "step"
    gamma: float = 0.1
    final: float = 0.0
    rise: float = 0.3
    warmup_steps: int = 0
    warmup_start: float = 0.0

    def __post_init__(self) -> None:
        for name in ("base", "gamma", "final", "rise", "warmup_steps", "warmup_start"):
            keep(self, **{name: number(name, getattr(self, name))})
        if not (math.isfinite(self.base) and self.base > 0):
            raise ValueError(f"learning rate {self.base}: give a positive number")
        if self.decay not in ("step", "cosine", "one-cycle"):
            raise ValueError(f"decay {self.decay!r}: choose step, cosine or one-cycle")
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma {self.gamma}: give a factor above 0 and at most 1")
        if not 0 <= self.final <= 1:
            raise ValueError(f"final {self.final}: give a share of the base rate, from 0 to 1")
        if not 0 < self.rise < 1:
            raise ValueError(f"rise {self.rise}: give a share of the run between 0 and 1")
        if not (self.warmup_steps >= 0 and float(self.warmup_steps).is_integer()):
            raise ValueError(
                f"warmup_steps {self.warmup_steps}: give a whole number of steps, 0 for none"
            )
        if not (math.isfinite(self.warmup_start) and self.warmup_start >= 0):
            raise ValueError(f"warmup_start {self.warmup_start}: give a rate of 0 or more")
        if self.warmup_steps and self.warmup_start > self.base:
            raise ValueError(
                f"warmup_start {self.warmup_start}: the rate rises from it to {self.base}; give no "
                f"more than that"
            )
        if self.decay == "one-cycle" and self.warmup_steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps}: a one-cycle rate has its own rise; use 0"
            )

    def at(self, *, stage: int, progress: float) -> float:
        """The rate in learning-rate stage ``stage``, ``progress`` in [0, 1) through the run."""
        if self.decay == "step":
            return self.base * self.gamma**stage
        if self.decay == "cosine":
            return _anneal(self.base, self.base * self.final, progress)
        if progress < self.rise:
            return _anneal(self.base / 25, self.base, progress / self.rise)
        return _anneal(self.base, self.base * self.final, (progress - self.rise) / (1 - self.rise))


def _anneal(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Baseline:
    """B x T x H x W for ``steps`` optimizer steps.

    Args:
        shape: of a clip.
        batch_size: clips of a step, over all processes.
        steps: optimizer steps of the run.
        num_videos: the size of an epoch.
        learning_rate: as a function of stage and progress.
        stage_ends: the steps at which the learning rate drops, without the last step: a run of
            112k steps that drops at 44k, 72k and 92k has four stages. With a cosine or one-cycle
            rate they only say where long cycles begin.

    >>> baseline = Baseline(
    ...     shape=Shape(32, 224, 224),
    ...     batch_size=64,
    ...     steps=100_000,
    ...     num_videos=240_000,
    ...     learning_rate=LearningRate(0.1),
    ...     stage_ends=(40_000, 80_000),
    ... )
    >>> baseline.num_stages, round(baseline.epochs, 1)
    (3, 26.7)
    """

    shape: Shape
    batch_size: int
    steps: int
    num_videos: int
    learning_rate: LearningRate
    stage_ends: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_type("shape", self.shape, Shape, example="Shape(16, 224, 224)")
        check_type("learning_rate", self.learning_rate, LearningRate, example="LearningRate(0.1)")
        for name in ("batch_size", "steps", "num_videos"):
            keep(self, **{name: whole_number(name, getattr(self, name))})
        given = as_tuple("stage_ends", self.stage_ends, example="(40_000, 80_000)")
        give = (
            f"rising steps between 1 and {self.steps - 1}, the steps at which the learning rate "
            f"drops"
        )
        ends = tuple(whole_number("stage_ends", end, give=give) for end in given)
        keep(self, stage_ends=ends)
        if any(end <= start for start, end in pairwise((0, *ends, self.steps))):
            raise ValueError(f"stage_ends {list(ends)}: give {give}")
        if self.learning_rate.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps {self.learning_rate.warmup_steps}: the run has {self.steps} steps; "
                f"use fewer"
            )

    @property
    def num_stages(self) -> int:
        return len(self.stage_ends) + 1

    @property
    def num_clips(self) -> int:
        """Clips that the run consumes."""
        return self.batch_size * self.steps

    @property
    def epochs(self) -> float:
        """Passes over the dataset."""
        return self.num_clips / self.num_videos
