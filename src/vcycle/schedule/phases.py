"""Phases: how the steps of a run are shared out over learning-rate stages and base shapes.

In: a baseline, the base shapes of the long cycle with their weights, and either a number of steps
or a number of clips. Out: the phases, in order, each with its first step and first sample. A run is
laid out in sections: learning-rate stages, each with a cycle in it, or the phases of a single pass.
Every section keeps its share of the steps, to within a few; within it the base shapes get theirs,
to within one (paper, section 3.2).
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise, product
from typing import Literal

from vcycle.schedule.base_shapes import BaseShape, are_cycles
from vcycle.schedule.baseline import Baseline

PhaseKind = Literal["constant", "cycle", "pass", "fine-tuning"]

# How far from the real-valued number of steps, and from the last section's share of them, a run may
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


@dataclass(frozen=True)
class Part:
    """A phase before its steps are known; ``weight`` is against the others of its section."""

    kind: PhaseKind
    stage: int
    rate_stage: int
    base: BaseShape
    weight: int = 1


@dataclass(frozen=True)
class Layout:
    """A run without its length.

    ``sections`` are (end, parts): the end in units of which the run has ``whole``, so that
    sections end where they should to within one step. ``turns`` is how many ways there are to
    share out the steps of a section that do not divide evenly.
    """

    whole: int
    sections: tuple[tuple[int, tuple[Part, ...]], ...]
    turns: int

    @property
    def ends(self) -> tuple[int, ...]:
        """Where sections begin and end, from 0 to ``whole``."""
        return (0, *(end for end, _ in self.sections))

    @property
    def mean_batch_size(self) -> float:
        """Clips of a step, averaged over the run."""
        total = 0.0
        for (start, end), (_, parts) in zip(pairwise(self.ends), self.sections, strict=True):
            mean = sum(part.weight * part.base.mean_batch_size for part in parts)
            mean /= sum(part.weight for part in parts)
            total += mean * (end - start) / self.whole
        return total


def cycles_layout(
    baseline: Baseline,
    shapes: tuple[BaseShape, ...],
    weights: tuple[int, ...],
    *,
    fine_tuning: bool,
) -> Layout:
    """A cycle over ``shapes`` in every learning-rate stage, the last one perhaps fine-tuning."""
    kind: PhaseKind = "cycle" if are_cycles(shapes) else "constant"
    sections: list[tuple[int, tuple[Part, ...]]] = []
    for stage, end in enumerate((*baseline.stage_ends, baseline.steps)):
        if fine_tuning and stage == baseline.num_stages - 1:
            rates = (stage - 1, stage)
            parts = tuple(Part("fine-tuning", stage, rate, shapes[-1]) for rate in rates)
        else:
            rows = zip(shapes, weights, strict=True)
            parts = tuple(Part(kind, stage, stage, base, weight) for base, weight in rows)
        sections.append((end, parts))
    return Layout(baseline.steps, tuple(sections), turns=len(shapes))


def pass_layout(
    shapes: tuple[BaseShape, ...],
    weights: tuple[int, ...],
    *,
    steps: int,
    stage_ends: tuple[int, ...],
) -> Layout:
    """One pass over ``shapes``, whose phases are also cut at ``stage_ends``, of ``steps``."""
    kind: PhaseKind = "pass" if are_cycles(shapes) else "constant"
    total = sum(weights)
    shape_ends = [end * steps for end in accumulate(weights)]
    rate_ends = [end * total for end in stage_ends]
    starts = [0, *sorted({*shape_ends, *rate_ends})]
    sections = []
    for start, end in pairwise(starts):
        base, stage = shapes[bisect_right(shape_ends, start)], bisect_right(rate_ends, start)
        sections.append((end, (Part(kind, stage, stage, base),)))
    return Layout(total * steps, tuple(sections), turns=1)


def phases_of_steps(
    steps: int, layout: Layout, *, extra_steps: int = 0, turn: int = 0
) -> tuple[Phase, ...]:
    """Share out ``steps`` steps, then lengthen the last section by ``extra_steps``.

    If the steps of a section do not divide evenly, ``turn`` (from 0) says which of its phases get
    one more. Raises ValueError if a phase would get no step, unless it is one of a single pass, and
    its shape and its learning-rate stage have steps beside it: that is left out.
    """
    edges = [(2 * steps * end + layout.whole) // (2 * layout.whole) for end in layout.ends]
    edges[-1] += extra_steps
    phases: list[Phase] = []
    left_out: list[Part] = []
    sample = 0
    for (start, end), (_, parts) in zip(pairwise(edges), layout.sections, strict=True):
        shift, count = turn % len(parts), len(parts)
        total = sum(part.weight for part in parts)
        cuts = [
            start + ((end - start) * weight * count + shift * total) // (total * count)
            for weight in accumulate((part.weight for part in parts), initial=0)
        ]
        for part, (first, last) in zip(parts, pairwise(cuts), strict=True):
            if last < first or (last == first and count > 1):
                raise ValueError(_no_steps(part, layout))
            if last == first:
                left_out.append(part)
                continue
            phases.append(
                Phase(
                    part.kind, part.stage, part.rate_stage, first, last - first, sample, part.base
                )
            )
            sample = phases[-1].end_sample
    for part in left_out:
        has_shape = any(phase.base == part.base for phase in phases)
        if not (has_shape and any(phase.stage == part.stage for phase in phases)):
            raise ValueError(_no_steps(part, layout))
    return tuple(phases)


def _no_steps(part: Part, layout: Layout) -> str:
    stages = layout.sections[-1][1][-1].stage + 1
    where = f" in learning-rate stage {part.stage + 1} of {stages}" if stages > 1 else ""
    return f"none of the plan's is left for {part.base.shape}{where}"


def enough_steps(layout: Layout, *, few: int) -> int:
    """More steps than ``few``, of which every phase gets one."""
    enough = few + 1
    while not _suffices(enough, layout):
        few, enough = enough, 2 * enough
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if _suffices(middle, layout) else (middle, enough)
    return enough


def _suffices(steps: int, layout: Layout) -> bool:
    try:
        phases_of_steps(steps, layout)
    except ValueError:
        return False
    return True


def phases_of_clips(clips: float, layout: Layout, *, tolerance: int) -> tuple[Phase, ...]:
    """The phases of a run that consumes ``clips`` clips.

    Phases end at whole steps, so the clips of a run do not grow evenly with its steps. If many
    stages leave it far off, the number of steps is corrected; then the first of its neighbours that
    comes within ``tolerance`` clips is taken, or else the nearest of them.
    """
    mean_batch_size = layout.mean_batch_size
    steps = max(1, round(clips / mean_batch_size))
    nearest = phases_of_steps(steps, layout)
    for _ in range(_CORRECTIONS):
        missing = clips - nearest[-1].end_sample
        if abs(missing) <= _STEPS_AROUND * mean_batch_size:
            break  # near enough for its neighbours
        corrected = max(1, nearest[-1].end_step + round(missing / mean_batch_size))
        with suppress(ValueError):  # a phase of no steps
            phases = phases_of_steps(corrected, layout)
            nearest = min(nearest, phases, key=lambda run: abs(run[-1].end_sample - clips))
    neighbours = _neighbours(nearest[-1].end_step, turns=layout.turns)
    for steps, extra_steps, turn in islice(neighbours, max(1, _MOST_PHASES // len(nearest))):
        if abs(nearest[-1].end_sample - clips) <= tolerance:
            break
        with suppress(ValueError):
            phases = phases_of_steps(steps, layout, extra_steps=extra_steps, turn=turn)
            nearest = min(nearest, phases, key=lambda run: abs(run[-1].end_sample - clips))
    return nearest


def _neighbours(steps: int, *, turns: int) -> list[tuple[int, int, int]]:
    """(steps, extra steps of the last section, turn), the least changed first."""
    around = range(-_STEPS_AROUND, _STEPS_AROUND + 1)
    moved = sorted(product(around, around), key=lambda move: abs(move[0]) + abs(move[1]))
    return [
        (steps + more, extra_steps, turn)
        for more, extra_steps in moved
        for turn in range(turns)
        if steps + more >= 1
    ]
