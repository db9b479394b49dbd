"""The plan: step -> shape, batch size, learning rate, norm group, first sample.

In: a Baseline and how multigrid changes it. Out: a value that is complete before the first step
and the same on every rank. It holds phases, not steps: a step is found by bisection, so `plan[i]`
and the sample offset of step i cost O(log phases) (paper, section 3.2).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from vcycle.schedule.baseline import Baseline
from vcycle.schedule.cycles import (
    BaseShape,
    LongCycle,
    ShapeRule,
    ShortCycle,
    ShortShape,
    are_cycles,
    base_shapes,
)
from vcycle.schedule.phases import Phase, phases_of_clips, phases_of_steps
from vcycle.schedule.shape import Shape


@dataclass(frozen=True)
class Multigrid:
    """How multigrid changes a baseline; the defaults are the paper's.

    ``epoch_factor`` fixes the clips of the run as a multiple of the baseline's, and so the number
    of steps; ``steps`` fixes the steps instead (tables 1a and 1b). ``norm_group`` is the
    sub-mini-batch of batch norm in clips, None for a model without batch norm.
    ``batch_exponent`` p lets batches grow as (THW / thw)^p, rounded to whole multiples of B: 1 is
    equation 1, 0 keeps the batch.
    ``rate_exponent`` q scales the rate by the long cycle's batch factor to the power q: 1 is the
    linear scaling rule, 0.5 the square-root rule that suits Adam.
    """

    long_cycle: LongCycle | None = LongCycle()
    short_cycle: ShortCycle | None = ShortCycle()
    epoch_factor: float = 1.5
    steps: int | None = None
    fine_tuning: bool = True
    norm_group: int | None = 8
    batch_exponent: float = 1.0
    rate_exponent: float = 1.0
    rule: ShapeRule = ShapeRule()

    def __post_init__(self) -> None:
        if not 0 < self.epoch_factor < float("inf"):
            raise ValueError(f"epoch_factor {self.epoch_factor}: give a positive number")
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps {self.steps}: give a number of at least 1")
        if self.norm_group is not None and self.norm_group < 1:
            raise ValueError(f"norm_group {self.norm_group}: give at least 1 clip, or none")
        for name in ("batch_exponent", "rate_exponent"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)}: give a number from 0 to 1")

    @classmethod
    def off(
        cls,
        *,
        steps: int | None = None,
        norm_group: int | None = 8,
        rule: ShapeRule = ShapeRule(),
    ) -> Multigrid:
        """No cycles: the baseline itself, or shortened to ``steps`` steps."""
        return cls(
            long_cycle=None,
            short_cycle=None,
            epoch_factor=1.0,
            steps=steps,
            fine_tuning=False,
            norm_group=norm_group,
            rule=rule,
        )


@dataclass(frozen=True)
class Step:
    """All that one optimizer step needs. Sizes and the first sample are of the global batch."""

    index: int
    phase: int
    shape: Shape
    batch_size: int
    learning_rate: float
    norm_group: int | None
    first_sample: int


@dataclass(frozen=True)
class MiniBatch:
    """A kind of step, and how many of them there are. Sizes are of the global batch."""

    shape: Shape
    batch_size: int
    norm_group: int | None
    steps: int


@dataclass(frozen=True)
class Plan(Sequence[Step]):
    """The schedule of a run: ``len(plan)`` optimizer steps, ``plan[i]`` is all of step i."""

    baseline: Baseline
    multigrid: Multigrid
    phases: tuple[Phase, ...] = field(init=False, repr=False)
    warmup_steps: int = field(init=False, repr=False)
    _first_steps: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        phases = _phases(self.baseline, self.multigrid)
        # How a frozen dataclass derives a field; nothing changes after construction.
        object.__setattr__(self, "phases", phases)
        object.__setattr__(self, "_first_steps", tuple(phase.first_step for phase in phases))
        object.__setattr__(self, "warmup_steps", self._count_warmup_steps())

    def __len__(self) -> int:
        return self.phases[-1].end_step

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"step {index}: the plan has {len(self)} steps")
        index %= len(self)
        number = self.phase_of(index)
        phase = self.phases[number]
        short = phase.base.at(index)
        return Step(
            index=index,
            phase=number,
            shape=short.shape,
            batch_size=short.batch_size,
            learning_rate=self._learning_rate(index, phase),
            norm_group=short.norm_group,
            first_sample=phase.sample_at(index),
        )

    def phase_of(self, step: int) -> int:
        """The number, from 0, of the phase that ``step`` belongs to."""
        return bisect_right(self._first_steps, step) - 1

    def first_sample(self, step: int) -> int:
        """Clips that the run has consumed before ``step``, from 0 to ``len(self)``."""
        if not 0 <= step <= len(self):
            raise IndexError(f"step {step}: the plan has {len(self)} steps")
        return self.phases[self.phase_of(step)].sample_at(step)

    @property
    def num_clips(self) -> int:
        """Clips that the run consumes."""
        return self.phases[-1].end_sample

    @property
    def epochs(self) -> float:
        """Passes over the data set."""
        return self.num_clips / self.baseline.num_videos

    @property
    def step_reduction(self) -> float:
        """How many times fewer steps than the baseline's."""
        return self.baseline.steps / len(self)

    def mini_batches(self, *, first_step: int = 0) -> tuple[MiniBatch, ...]:
        """Every (shape, batch size, norm group) with its steps, cheapest clip first.

        With ``first_step``, of the steps from there on: what remains of a resumed run.
        """
        steps: Counter[tuple[Shape, int, int | None]] = Counter()
        for phase in self.phases:
            start = min(max(phase.first_step, first_step), phase.end_step)
            counts = phase.base.counts(start, phase.end_step)
            for short, count in zip(phase.base.short_cycle, counts, strict=True):
                steps[short.shape, short.batch_size, short.norm_group] += count
        kinds = sorted(
            (kind for kind, count in steps.items() if count),
            key=lambda kind: (kind[0].num_pixels, kind[0], kind[1], kind[2] or 0),
        )
        return tuple(MiniBatch(*kind, steps[kind]) for kind in kinds)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Every shape of the run, cheapest clip first."""
        return tuple(dict.fromkeys(each.shape for each in self.mini_batches()))

    def _learning_rate(self, index: int, phase: Phase) -> float:
        """The scheduled rate, or the straight line to it during warm-up."""
        if index >= self.warmup_steps:
            return self._scheduled_rate(index, phase)
        end = self._scheduled_rate(self.warmup_steps, self.phases[self.phase_of(self.warmup_steps)])
        start = self.baseline.learning_rate.warmup_start
        return start + (end - start) * index / self.warmup_steps

    def _scheduled_rate(self, index: int, phase: Phase) -> float:
        """The baseline's rate times the long cycle's batch factor, not the short cycle's."""
        rate = self.baseline.learning_rate.at(stage=phase.rate_stage, progress=index / len(self))
        return rate * math.pow(phase.base.batch_factor, self.multigrid.rate_exponent)

    def _count_warmup_steps(self) -> int:
        """Steps until as many clips are seen as the baseline's warm-up sees.

        The epoch factor does not stretch a warm-up, and a run of fewer clips than the baseline's
        shortens it in proportion; the paper leaves both open.
        """
        clips = self.baseline.learning_rate.warmup_steps * self.baseline.batch_size
        if self.num_clips < self.baseline.num_clips:
            clips = clips * self.num_clips // self.baseline.num_clips
        return bisect_left(range(len(self) - 1), clips, key=self.first_sample)

    def to_dict(self) -> dict[str, Any]:
        """Totals and phases as plain values, for JSON.

        Stages and steps count from 0; sizes and rate of a phase are those of its base shape, and
        the rate is without warm-up.
        """
        return {
            "steps": len(self),
            "baseline_steps": self.baseline.steps,
            "step_reduction": self.step_reduction,
            "epochs": self.epochs,
            "baseline_epochs": self.baseline.epochs,
            "clips": self.num_clips,
            "baseline_clips": self.baseline.num_clips,
            "num_videos": self.baseline.num_videos,
            "warmup_steps": self.warmup_steps,
            "phases": [self._phase_dict(phase) for phase in self.phases],
        }

    def _phase_dict(self, phase: Phase) -> dict[str, Any]:
        return {
            "kind": phase.kind,
            "stage": phase.stage,
            "first_step": phase.first_step,
            "last_step": phase.end_step - 1,
            "steps": phase.steps,
            "first_sample": phase.first_sample,
            "clips": phase.end_sample - phase.first_sample,
            "epochs": (phase.end_sample - phase.first_sample) / self.baseline.num_videos,
            **_sizes(phase.base.short_cycle[-1]),
            "learning_rate": self._scheduled_rate(phase.first_step, phase),
            "last_learning_rate": self._scheduled_rate(phase.end_step - 1, phase),
            "short_cycle": [_sizes(short) for short in phase.base.short_cycle],
        }


def _sizes(short: ShortShape) -> dict[str, int | None]:
    return {
        "frames": short.shape.frames,
        "height": short.shape.height,
        "width": short.shape.width,
        "batch_size": short.batch_size,
        "norm_group": short.norm_group,
    }


def _phases(baseline: Baseline, multigrid: Multigrid) -> tuple[Phase, ...]:
    shapes = base_shapes(
        baseline.shape,
        baseline.batch_size,
        long_cycle=multigrid.long_cycle,
        short_cycle=multigrid.short_cycle,
        rule=multigrid.rule,
        batch_exponent=multigrid.batch_exponent,
        norm_group=multigrid.norm_group,
    )
    _check_norm_group(multigrid.norm_group, shapes)
    fine_tuning = multigrid.fine_tuning and are_cycles(shapes)
    if fine_tuning and baseline.num_stages < 2:
        raise ValueError(
            "fine_tuning: it takes the last learning-rate stage and this baseline has only one; "
            "give stage_ends, or switch fine-tuning off"
        )
    if multigrid.steps is not None:
        return phases_of_steps(multigrid.steps, baseline, shapes, fine_tuning=fine_tuning)
    clips = multigrid.epoch_factor * baseline.num_clips
    return phases_of_clips(clips, baseline, shapes, fine_tuning=fine_tuning)


def _check_norm_group(norm_group: int | None, shapes: tuple[BaseShape, ...]) -> None:
    for base in shapes:
        if norm_group is not None and base.batch_size % norm_group:
            raise ValueError(
                f"norm_group {norm_group}: groups of {norm_group} clips do not divide the batch "
                f"of {base.batch_size} clips at {base.shape}; use a batch size that is a multiple "
                f"of {norm_group}, a smaller group, or null for a model without batch norm"
            )
