"""The plan: step -> shape, batch size, learning rate, norm group, first sample.

In: a Baseline and how multigrid changes it. Out: a value that is complete before the first step
and the same on every rank. It holds phases, not steps: a step is found by bisection, so ``plan[i]``
and the sample offset of step i cost O(log phases) (paper, section 3.2).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, overload

from vcycle.schedule.arguments import as_index, check_type, keep
from vcycle.schedule.base_shapes import ShortShape
from vcycle.schedule.baseline import Baseline
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.phases import Phase
from vcycle.schedule.run_phases import run_phases
from vcycle.schedule.shape import Shape, clip_name, round_half_up


@dataclass(frozen=True)
class Step:
    """All that one optimizer step needs. Sizes and the first sample are of the global batch.

    ``token_share`` of a clip's tokens are kept, for a model that can drop them.

    >>> step = Step(
    ...     index=7,
    ...     phase=0,
    ...     shape=Shape(8, 112, 112),
    ...     batch_size=128,
    ...     learning_rate=0.4,
    ...     norm_group=8,
    ...     first_sample=896,
    ... )
    >>> step.batch_size * step.shape.num_pixels
    12845056
    """

    index: int
    phase: int
    shape: Shape
    batch_size: int
    learning_rate: float
    norm_group: int | None
    first_sample: int
    token_share: float = 1.0


@dataclass(frozen=True)
class MiniBatch:
    """A kind of step, and how many of them there are. Sizes are of the global batch.

    >>> kind = MiniBatch(Shape(8, 112, 112), batch_size=128, norm_group=8, steps=500)
    >>> kind.steps * kind.batch_size
    64000
    """

    shape: Shape
    batch_size: int
    norm_group: int | None
    steps: int
    token_share: float = 1.0


@dataclass(frozen=True)
class Plan(Sequence[Step]):
    """The schedule of a run: ``len(plan)`` optimizer steps, ``plan[i]`` is all of step i.

    ``warmup_steps`` rise to the scheduled rate. ``anneal_start`` is the share of the run after
    which an anneal's rate falls.

    >>> baseline = Baseline(
    ...     shape=Shape(32, 224, 224),
    ...     batch_size=64,
    ...     steps=100_000,
    ...     num_videos=240_000,
    ...     learning_rate=LearningRate(0.1),
    ...     stage_ends=(40_000, 80_000),
    ... )
    >>> plan = Plan(baseline, Multigrid())
    >>> len(plan), round(plan.step_reduction, 2)
    (29603, 3.38)
    >>> step = plan[0]
    >>> print(step.batch_size, "x", step.shape, "at", step.learning_rate)
    1024 x 8x112x112 at 0.8
    >>> print(Plan(baseline, Multigrid.named("pass")))
    37,234 steps (baseline: 100,000), 93.3 epochs of 240,000 videos
    18,617 x 1,024 clips of 8x112x112, norm groups of 8
    11,170 x 256 clips of 16x158x158, norm groups of 8
     7,447 x 64 clips of 32x224x224, norm groups of 8
    """

    baseline: Baseline
    multigrid: Multigrid
    phases: tuple[Phase, ...] = field(init=False, repr=False)
    warmup_steps: int = field(init=False, repr=False)
    anneal_start: float = field(init=False, repr=False)
    _first_steps: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_type("baseline", self.baseline, Baseline, example="Baseline(shape=..., steps=...)")
        check_type("multigrid", self.multigrid, Multigrid, example="Multigrid.named('anneal')")
        phases = run_phases(self.baseline, self.multigrid)
        keep(self, phases=phases, _first_steps=tuple(phase.first_step for phase in phases))
        base = self.baseline.learning_rate.base
        most = max(phase.base.rate_factor for phase in phases)
        if not math.isfinite(base * most):
            raise ValueError(
                f"learning rate {base:g}: {most:g} times as much, on a coarse shape, is too large "
                f"for a number; give a lower one"
            )
        keep(self, anneal_start=self._find_anneal_start())
        keep(self, warmup_steps=self._count_warmup_steps())

    def __len__(self) -> int:
        return self.phases[-1].end_step

    def __str__(self) -> str:
        """The totals, and a line for every kind of batch."""
        lines = [
            f"{len(self):,} steps (baseline: {self.baseline.steps:,}), {self.epochs:.1f} epochs of "
            f"{self.baseline.num_videos:,} videos"
        ]
        width = len(f"{len(self):,}")
        for kind in self.mini_batches():
            group = "" if kind.norm_group is None else f", norm groups of {kind.norm_group}"
            clip = clip_name(kind.shape, kind.token_share)
            lines.append(f"{kind.steps:{width},} x {kind.batch_size:,} clips of {clip}{group}")
        return "\n".join(lines)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        given = as_index("step", index)
        if not -len(self) <= given < len(self):
            raise IndexError(f"step {given}: the plan has {len(self)} steps")
        index = given % len(self)
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
            token_share=short.token_share,
        )

    def phase_of(self, step: int) -> int:
        """The number, from 0, of the phase that ``step`` belongs to."""
        return bisect_right(self._first_steps, as_index("step", step)) - 1

    def first_sample(self, step: int) -> int:
        """Clips that the run has consumed before ``step``, from 0 to ``len(self)``."""
        step = as_index("step", step)
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
        """Every (shape, batch size, norm group, token share) with its steps, cheapest clip first.

        With ``first_step``, of the steps from there on: what remains of a resumed run.
        """
        first_step = as_index("step", first_step)
        steps: Counter[tuple[Shape, int, int | None, float]] = Counter()
        for phase in self.phases:
            start = min(max(phase.first_step, first_step), phase.end_step)
            counts = phase.base.counts(start, phase.end_step)
            for short, count in zip(phase.base.short_cycle, counts, strict=True):
                kind = short.shape, short.batch_size, short.norm_group, short.token_share
                steps[kind] += count
        kinds = sorted(
            (kind for kind, count in steps.items() if count),
            key=lambda kind: (kind[0].num_pixels * kind[3], kind[0], kind[1], kind[2] or 0),
        )
        return tuple(
            MiniBatch(shape, clips, group, steps[shape, clips, group, share], share)
            for shape, clips, group, share in kinds
        )

    @property
    def baseline_step(self) -> MiniBatch:
        """All steps of the baseline, with the plan's norm group."""
        base = self.baseline
        return MiniBatch(base.shape, base.batch_size, self.multigrid.norm_group, base.steps)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Every shape of the run, cheapest clip first."""
        return tuple(dict.fromkeys(each.shape for each in self.mini_batches()))

    @property
    def clip_kinds(self) -> tuple[tuple[Shape, float], ...]:
        """Shape and token share of every clip of the run and its baseline, cheapest clip first."""
        kinds = (*self.mini_batches(), self.baseline_step)
        return tuple(dict.fromkeys((each.shape, each.token_share) for each in kinds))

    @property
    def drops_tokens(self) -> bool:
        """Whether a phase keeps a share of the tokens."""
        return any(phase.base.token_share < 1 for phase in self.phases)

    def _learning_rate(self, index: int, phase: Phase) -> float:
        """The scheduled rate, or the straight line to it during warm-up."""
        if index >= self.warmup_steps:
            return self._scheduled_rate(index, phase)
        end = self._scheduled_rate(self.warmup_steps, self.phases[self.phase_of(self.warmup_steps)])
        start = min(end, self.baseline.learning_rate.warmup_start)  # it may end after a drop
        return start + (end - start) * index / self.warmup_steps

    def _scheduled_rate(self, index: int, phase: Phase) -> float:
        """The rate of the baseline, or of the anneal, times the base shape's factor."""
        progress, anneal = index / len(self), self.multigrid.anneal
        if anneal is None:
            rate = self.baseline.learning_rate.at(stage=phase.rate_stage, progress=progress)
        else:
            share = anneal.at(progress, start=self.anneal_start)
            rate = self.baseline.learning_rate.base * share
        return rate * phase.base.rate_factor

    def _find_anneal_start(self) -> float:
        """How far through the run the rate begins to fall."""
        anneal, full_grid = self.multigrid.anneal, self.phases[-1].base
        if anneal is not None and anneal.share is not None:
            if anneal.share * len(self) < 1 + 1e-9:  # the first that it has is at the peak
                raise ValueError(
                    f"anneal.share {anneal.share:g}: {len(self)} steps leave the fall none; give "
                    f"{2 / len(self):.2g} or more"
                )
            return 1 - anneal.share
        at_the_end = takewhile(lambda phase: phase.base == full_grid, reversed(self.phases))
        return min(phase.first_step for phase in at_the_end) / len(self)

    def _count_warmup_steps(self) -> int:
        """Steps until as many clips are seen as the baseline's warm-up sees; or the anneal's share.

        The epoch factor does not stretch a warm-up, and a run of fewer clips than the baseline's
        shortens it in proportion; the paper leaves both open.
        """
        anneal = self.multigrid.anneal
        if anneal is not None:
            # A rate that falls from the first step on rises before it does.
            if 0 < self.anneal_start < anneal.warmup - 1e-9:
                fix = "" if anneal.share is None else f", or anneal.share {1 - anneal.warmup:g}"
                raise ValueError(
                    f"anneal.warmup {anneal.warmup:g}: the rate would still rise where it is to "
                    f"fall, from {self.anneal_start:.3g} of the steps on; give less{fix}"
                )
            return min(len(self) - 1, round_half_up(anneal.warmup * len(self)))
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
            "shape": str(phase.base.shape),
            "token_share": phase.base.token_share,
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
