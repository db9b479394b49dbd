"""Which batch each shape of a plan should have on this device, from its measured throughput.

In: a plan and a network that is ready to be timed. Out: for every shape of the long cycle a
multiple of the baseline's batch, and the rows that were measured. Equation 1 keeps the pixels of a
step; a device may be full with fewer, or need more, or have no memory for as many.
"""

from __future__ import annotations

from collections.abc import Callable

from vcycle.bench.step import StepBench, StepRow
from vcycle.schedule.cycles import FULL_GRID
from vcycle.schedule.plan import MiniBatch, Plan
from vcycle.schedule.shape import Shape

_ENOUGH = 0.95
"""Of the best clips per second, from which a larger batch is not worth its rate and its memory."""
_MOST = 1024
"""Times the baseline's batch; the search ends much earlier where memory does."""


def batch_factors(
    bench: StepBench,
    plan: Plan,
    *,
    num_devices: int = 1,
    max_clips: int | None = None,
    repeats: int = 5,
    most_batch: int | None = None,
    progress: Callable[[StepRow], None] | None = None,
) -> tuple[int, ...]:
    """``long_cycle.batch_factors`` for a plan, coarse to fine.

    On each shape batches of 1, 2, 4, ... times the baseline's are timed until one does not fit, or
    has more than ``most_batch`` clips in all or ``max_clips`` on a device, or is no faster a clip
    than the last; ``progress`` is given the row of each. The smallest within 5% of the most clips
    per second is taken. The full grid keeps the baseline's batch.
    Raises ValueError if there is no such shape, or the devices cannot share the baseline's batch
    evenly.
    """
    check_batches(plan, num_devices)
    share = plan.baseline.batch_size // num_devices
    most = _MOST
    if most_batch is not None:
        most = min(_MOST, max(1, most_batch // plan.baseline.batch_size))
    factors: list[int] = []
    for shape, token_share in _clips(plan)[:-1]:
        tried: dict[int, float] = {}
        factor = 1
        while factor <= most:
            kind = MiniBatch(
                shape,
                factor * plan.baseline.batch_size,
                plan.multigrid.norm_group,
                steps=0,
                token_share=token_share,
            )
            clips = min(factor * share, max_clips or factor * share)
            if factor > 1 and clips < factor * share:
                break
            row = bench.row_if_it_fits(kind, clips, num_devices=num_devices, repeats=repeats)
            if row is None:
                break
            if progress is not None:
                progress(row)
            tried[factor] = row.clips / row.seconds
            if factor > 1 and tried[factor] <= tried[factor // 2]:
                break
            factor *= 2
        factors.append(smallest_fast_enough(tried))
    return (*factors, 1)


def check_batches(plan: Plan, num_devices: int) -> None:
    """Raise ValueError if there is no batch to choose, or devices cannot share the baseline's."""
    if len(_clips(plan)) == 1:
        raise ValueError(
            "--batches: the plan has no coarser shape to choose a batch for; leave it out"
        )
    if num_devices < 1 or plan.baseline.batch_size % num_devices:
        raise ValueError(
            f"num_devices {num_devices}: it does not divide the batch of "
            f"{plan.baseline.batch_size} clips; give a divisor of that"
        )


def smallest_fast_enough(clips_per_second: dict[int, float]) -> int:
    """The smallest batch factor within 5% of the most clips per second; 1 if none was measured."""
    most = max(clips_per_second.values(), default=0.0)
    fast = (factor for factor, rate in clips_per_second.items() if rate >= _ENOUGH * most)
    return min(fast, default=1)


def _clips(plan: Plan) -> list[tuple[Shape, float]]:
    """Shape and token share of each place in the long cycle."""
    cycle, rule = plan.multigrid.long_cycle or FULL_GRID, plan.multigrid.rule
    shapes = [
        rule.scale(plan.baseline.shape, frames=frames, side=side) for frames, side in cycle.factors
    ]
    return list(zip(shapes, cycle.tokens or (1.0,) * len(shapes), strict=True))
