"""From a baseline and how multigrid changes it to the phases of the run.

In: a Baseline and a Multigrid. Out: the phases, of as many steps or clips as the two say; or one
line that names what does not fit, and what would.
"""

from __future__ import annotations

import math

from vcycle.schedule.base_shapes import BaseShape, are_cycles, base_shapes
from vcycle.schedule.baseline import Baseline
from vcycle.schedule.cycles import FULL_GRID
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.phases import (
    Layout,
    Phase,
    cycles_layout,
    enough_steps,
    pass_layout,
    phases_of_clips,
    phases_of_steps,
)


def run_phases(baseline: Baseline, multigrid: Multigrid) -> tuple[Phase, ...]:
    """The phases of a run.

    Raises ValueError if norm groups do not divide a batch, fine-tuning has no stage of its own, an
    anneal would begin anew on the coarse grids in every stage, or a phase would have no step.
    """
    shapes = base_shapes(baseline, multigrid)
    _check_norm_group(multigrid.norm_group, shapes)
    layout = _layout(baseline, multigrid, shapes)
    clips = multigrid.epoch_factor * baseline.num_clips
    try:
        if multigrid.steps is not None:
            return phases_of_steps(multigrid.steps, layout)
        return phases_of_clips(clips, layout, tolerance=baseline.batch_size)
    except ValueError as error:
        fewer = ", or fewer long-cycle shapes, or a larger share for it" if len(shapes) > 1 else ""
        raise ValueError(_too_few(str(error), baseline, multigrid, layout) + fewer) from None


def _too_few(why: str, baseline: Baseline, multigrid: Multigrid, layout: Layout) -> str:
    """What was given, and more that gives every phase a step."""
    steps, factor = multigrid.steps, multigrid.epoch_factor
    if steps is not None:
        given, more = f"steps {steps}", f"{enough_steps(layout, few=steps)}"
    else:
        clips = factor * baseline.num_clips
        few = round(clips / layout.mean_batch_size)
        times = enough_steps(layout, few=few) * layout.mean_batch_size / clips
        given = f"epoch_factor {factor:g} of baseline.steps {baseline.steps}"
        more = f"an epoch_factor of {math.ceil(1e4 * factor * times) / 1e4:g}"
    return f"{given}: {why}; give more, such as {more}"


def _layout(baseline: Baseline, multigrid: Multigrid, shapes: tuple[BaseShape, ...]) -> Layout:
    cycle = multigrid.long_cycle or FULL_GRID
    if cycle.once:
        # A pass goes on over learning-rate stages, but a phase has one rate.
        drops = multigrid.anneal is None and baseline.learning_rate.decay == "step"
        stage_ends = baseline.stage_ends if drops else ()
        return pass_layout(shapes, cycle.weights, steps=baseline.steps, stage_ends=stage_ends)
    fine_tuning = multigrid.fine_tuning and are_cycles(shapes)
    if fine_tuning and baseline.num_stages < 2:
        raise ValueError(
            "fine_tuning true: it takes the last learning-rate stage and this baseline has only "
            "one; give baseline.stage_ends, or false"
        )
    # A single pass whose cycle was replaced by one that is none; the paper's has fine-tuning.
    if multigrid.anneal and not fine_tuning and len(shapes) > 1 and baseline.num_stages > 1:
        raise ValueError(
            f"long_cycle.once false: it would begin anew in each of {baseline.num_stages} "
            f"learning-rate stages, and an anneal is one curve over the run; give true (in Python "
            f"replace(multigrid.long_cycle, shares=...) keeps it)"
        )
    return cycles_layout(baseline, shapes, cycle.weights, fine_tuning=fine_tuning)


def _check_norm_group(norm_group: int | None, shapes: tuple[BaseShape, ...]) -> None:
    for each in (each for base in shapes for each in base.short_cycle):
        if norm_group is not None and each.batch_size % norm_group:
            raise ValueError(
                f"norm_group {norm_group}: groups of {norm_group} clips do not divide the batch "
                f"of {each.batch_size} clips at {each.shape}; use a batch size that is a multiple "
                f"of {norm_group}, a smaller group, or none (null) for a model without batch norm"
            )
