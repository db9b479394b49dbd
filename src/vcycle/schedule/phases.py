"""Phases: how the steps of a run are shared out over learning-rate stages and base shapes.

In: a baseline, the base shapes of the long cycle, and either a number of steps or a number of
clips. Out: the phases, in order, each with its first step and first sample. Every stage keeps its
share of the steps, to within a few; within it every base shape gets the same number, to within one
(paper, section 3.2).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, pairwise, product
from typing import Literal

from vcycle.schedule.baseline import Baseline
from vcycle.schedule.cycles import BaseShape, are_cycles

PhaseKind = Literal["constant", "cycle", "fine-tuning"]

# How far from the real-valued number of steps, and from the last stage's share of them, a run may
# end so that its clips come out right.
_STEPS_AROUND = 8
_CORRECTIONS = 3
_MOST_PHASES = 40_000
"""Of all neighbours together that are tried: about a tenth of a second, whatever the stages."""


@dataclass(frozen=True)
class Phase:
    """A stretch of steps on one base shape within one learning-rate stage.

    ``rate_stage`` is the stage whose rate applies: during the first half of fine-tuning it is
    the stage before.
    """

    kind: PhaseKind
    stage: int
    rate_stage: int
    first_step: int
    steps: int
    first_sample: int
    base: BaseShape

    @property
    def end_step(self) -> int:
        """The step after the last one."""
        return self.first_step + self.steps

    def sample_at(self, step: int) -> int:
        """Clips that the run has consumed before ``step``, a step of this phase or its end."""
        return self.first_sample + self.base.clips(self.first_step, step)

    @property
    def end_sample(self) -> int:
        """Clips that the run has consumed after this phase."""
        return self.sample_at(self.end_step)


def phases_of_steps(
    steps: int,
    baseline: Baseline,
    shapes: tuple[BaseShape, ...],
    *,
    fine_tuning: bool,
    extra_steps: int = 0,
    turn: int = 0,
) -> tuple[Phase, ...]:
    """Share out ``steps`` steps, then lengthen the last stage by ``extra_steps``.

    Where the steps of a stage do not divide evenly, ``turn`` (from 0) says which of its phases
    get one more. ValueError names a phase that would get none.
    """
    ends = (0, *baseline.stage_ends, baseline.steps)
    edges = [(2 * steps * end + baseline.steps) // (2 * baseline.steps) for end in ends]
    edges[-1] += extra_steps
    phases: list[Phase] = []
    sample = 0
    for stage, (start, end) in enumerate(pairwise(edges)):
        parts = _parts(stage, baseline, shapes, fine_tuning=fine_tuning)
        shift = turn % len(parts)
        cuts = [start + ((end - start) * j + shift) // len(parts) for j in range(len(parts) + 1)]
        for (kind, rate_stage, base), (first, last) in zip(parts, pairwise(cuts), strict=True):
            if last <= first:
                raise ValueError(
                    f"{steps} steps leave none for {base.shape} in learning-rate stage "
                    f"{stage + 1} of {baseline.num_stages}; use a larger epoch factor or more "
                    f"steps, or fewer long-cycle shapes"
                )
            phases.append(Phase(kind, stage, rate_stage, first, last - first, sample, base))
            sample = phases[-1].end_sample
    return tuple(phases)


def phases_of_clips(
    clips: float, baseline: Baseline, shapes: tuple[BaseShape, ...], *, fine_tuning: bool
) -> tuple[Phase, ...]:
    """The phases of a run that consumes ``clips`` clips.

    Phases end at whole steps, so the clips of a run do not grow evenly with its steps. Where many
    stages leave it far off, the number of steps is corrected; then the first of its neighbours that
    comes within B clips is taken, or else the nearest of them.
    """
    mean_batch_size = _mean_batch_size(baseline, shapes, fine_tuning=fine_tuning)
    steps = max(1, round(clips / mean_batch_size))
    nearest = phases_of_steps(steps, baseline, shapes, fine_tuning=fine_tuning)
    for _ in range(_CORRECTIONS):
        missing = clips - nearest[-1].end_sample
        if abs(missing) <= _STEPS_AROUND * mean_batch_size:
            break  # near enough for its neighbours
        corrected = max(1, nearest[-1].end_step + round(missing / mean_batch_size))
        with suppress(ValueError):  # a phase of no steps
            phases = phases_of_steps(corrected, baseline, shapes, fine_tuning=fine_tuning)
            nearest = min(nearest, phases, key=lambda run: abs(run[-1].end_sample - clips))
    neighbours = _neighbours(nearest[-1].end_step, turns=len(shapes))
    for steps, extra_steps, turn in islice(neighbours, max(1, _MOST_PHASES // len(nearest))):
        if abs(nearest[-1].end_sample - clips) <= baseline.batch_size:
            break
        with suppress(ValueError):
            phases = phases_of_steps(
                steps,
                baseline,
                shapes,
                fine_tuning=fine_tuning,
                extra_steps=extra_steps,
                turn=turn,
            )
            nearest = min(nearest, phases, key=lambda run: abs(run[-1].end_sample - clips))
    return nearest


def _neighbours(steps: int, *, turns: int) -> list[tuple[int, int, int]]:
    """(steps, extra steps of the last stage, turn), the least changed first."""
    around = range(-_STEPS_AROUND, _STEPS_AROUND + 1)
    moved = sorted(product(around, around), key=lambda move: abs(move[0]) + abs(move[1]))
    return [
        (steps + more, extra_steps, turn)
        for more, extra_steps in moved
        for turn in range(turns)
        if steps + more >= 1
    ]


def _mean_batch_size(
    baseline: Baseline, shapes: tuple[BaseShape, ...], *, fine_tuning: bool
) -> float:
    """Clips of a step, averaged over the run."""
    ends = (0, *baseline.stage_ends, baseline.steps)
    total = 0.0
    for stage, (start, end) in enumerate(pairwise(ends)):
        parts = _parts(stage, baseline, shapes, fine_tuning=fine_tuning)
        mean = sum(base.mean_batch_size for _, _, base in parts) / len(parts)
        total += mean * (end - start) / baseline.steps
    return total


def _parts(
    stage: int, baseline: Baseline, shapes: tuple[BaseShape, ...], *, fine_tuning: bool
) -> list[tuple[PhaseKind, int, BaseShape]]:
    """What a learning-rate stage consists of: (kind, stage of the rate, base shape)."""
    if fine_tuning and stage == baseline.num_stages - 1:
        return [("fine-tuning", stage - 1, shapes[-1]), ("fine-tuning", stage, shapes[-1])]
    return [("cycle" if are_cycles(shapes) else "constant", stage, base) for base in shapes]
