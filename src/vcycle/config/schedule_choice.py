"""Which schedule a run on one's own videos has: what the study backs (docs/which_schedule.md).

In: a baseline, and what was found of networks and videos like these; or how many steps a time
holds. Out: the anneal, in a share of the baseline's steps, or the baseline; and why, in a line.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from vcycle.config.evidence import Evidence
from vcycle.config.run import RunConfig
from vcycle.schedule.baseline import Baseline
from vcycle.schedule.multigrid import Multigrid

_LARGEST_FACTOR = 16
"""Equation 1 at T/4 x H/2 x W/2, the first shape of the anneal."""
_MOST_CLIPS = Fraction(128, 60)
"""The largest batch that was tried, over the videos that it was drawn from."""
FEWEST_STEPS = 221
"""Of an anneal that was compared with a baseline of equal time in more than one seed."""
LEAST_SHARE, LEAST_OF_CYCLES = 0.36, 0.55
"""Of the baseline's steps: in fewer a pass and, of the second, the paper's cycles mostly fell short
of its accuracy."""
LEAST_OF_SLOWFAST, LEAST_OF_TRANSFORMER = 0.55, 0.184
"""In fewer a SlowFast's pass mostly fell short of it, and a transformer's under AdamW."""
MOST_STEPS, LEVEL_STEPS = 1500, 3000
"""The longest anneal that was ahead of a baseline of equal time, and those beside one of as many
steps, which takes less time."""
MOST_STEPS_OF_MUON = 1500
"""The longest that was compared under Muon."""
MOST_BASELINE_STEPS, MOSTLY_STEPS = 1600, 3000
"""The anneal came to the accuracy of a whole baseline, or a longer one, of the first in five ninths
of its steps; of the second to that of all but one."""
_TOO_LONG = (
    f"not shown for a baseline this long: in 5/9 of their steps the anneal came on average to "
    f"whole baselines of 800 and, but for a point of a transformer's on generated clips, of 1,500, "
    f"and, one seed each, to those of {MOST_BASELINE_STEPS:,} and, but for a 3D ResNet's from "
    f"random weights on sign language, of {MOSTLY_STEPS:,}"
)
_TOO_LONG_FOR_MUON = (
    f"not shown for a baseline this long: under Muon the longest that the anneal was compared with "
    f"had {MOST_STEPS_OF_MUON:,} steps"
)
_BATCHES = (
    "as many times more clips a batch as a clip has fewer pixels (equation 1; its root was no "
    "better)"
)
_NOT_COMPARED = (
    f"no pass of fewer than {FEWEST_STEPS} was compared with a baseline of equal time in more than "
    f"one seed"
)


def planned(
    baseline: Baseline, evidence: Evidence, *, is_muon: bool, is_timed: bool
) -> tuple[Multigrid, tuple[str, ...]]:
    """One coarse-to-fine pass and an anneal, or the baseline where that was not shown to do; why.

    No fewer steps than were compared with a baseline, but as many as a shorter one has. A run of a
    given time takes the anneal, unless too few steps fit into it: ``timed``.
    """
    steps, num_videos = baseline.steps, baseline.num_videos
    clips, most = _LARGEST_FACTOR * baseline.batch_size, most_clips(num_videos)
    share = math.ceil(steps * evidence.share)
    kept = share if is_timed else max(share, min(steps, FEWEST_STEPS))
    if clips > most:
        enough = most // _LARGEST_FACTOR
        fix = f"; it is planned for batches of {enough} or fewer" if enough > 1 else ""
        return _off(
            f"the anneal's first batches of {clips:,} clips are more than twice the "
            f"{num_videos:,} videos, which was not tried{fix}"
        )
    if steps < FEWEST_STEPS and not is_timed:
        return _off(f"{steps:,} steps are few: {_NOT_COMPARED}")
    if is_timed:
        why = f"in the same time {evidence.timed}, with {evidence.among}"
    elif kept == steps:
        why = f"in as many steps {evidence.timed}, with {evidence.among}"
    elif kept > share:
        why = (
            f"in {kept:,} steps, the fewest in which it was ahead of a baseline of equal time in "
            f"more than one seed"
        )
    else:
        why = f"in {evidence.share} of the steps {evidence.found}, with {evidence.among}"
    multigrid = replace(Multigrid.named("anneal"), steps=kept)
    notes = [f"schedule anneal, one pass from coarse to fine, {_BATCHES}: {why}"]
    if not is_timed:
        notes += _too_long(steps, is_muon=is_muon)
    return multigrid, tuple(notes)


def _too_long(baseline_steps: int, *, is_muon: bool) -> list[str]:
    """That a baseline is longer than any that the anneal came to, if it is."""
    if is_muon:
        return [_TOO_LONG_FOR_MUON] if baseline_steps > MOST_STEPS_OF_MUON else []
    return [_TOO_LONG] if baseline_steps > MOST_BASELINE_STEPS else []


def as_asked(config: RunConfig, num_steps: int, *, is_own: bool) -> list[str]:
    """What speaks against a schedule of ``num_steps`` that was asked for by name.

    ``is_own``: the recipe is for one's own videos, and would have chosen a schedule itself.
    """
    cycle, steps, entry = config.multigrid.long_cycle, config.baseline.steps, config.model.entry
    is_transformer = entry is not None and entry.family == "VideoTransformer"
    is_slowfast = entry is not None and entry.family == "SlowFast"
    is_muon, exponent = config.optimizer.name == "muon", config.multigrid.batch_exponent
    least_share = LEAST_SHARE
    if cycle is not None and not cycle.once:
        least_share = LEAST_OF_CYCLES
    elif is_transformer and not is_muon:
        least_share = LEAST_OF_TRANSFORMER
    elif is_slowfast:
        least_share = LEAST_OF_SLOWFAST
    anneal = config.multigrid.anneal
    notes = []
    if anneal is not None and is_own and num_steps < FEWEST_STEPS:
        notes.append(f"schedule as asked: {num_steps:,} steps are few: {_NOT_COMPARED}")
    elif cycle is not None and (cycle.once or is_own) and num_steps < least_share * steps:
        one_pass = "a narrow SlowFast's single pass" if is_slowfast else "a single pass"
        kind = one_pass if cycle.once else "the paper's cycles"
        notes.append(
            f"schedule as asked: {100 * num_steps / steps:.3g}% of the baseline's steps; in fewer "
            f"than {100 * least_share:.3g}% {kind} mostly fell short of the baseline's accuracy"
        )
    if is_own and is_muon and (anneal is None or anneal.share == 1):
        notes.append("schedule as asked: under Muon none but the anneal was tried")
    if is_own and exponent != 1:
        notes.append(
            f"batch exponent {exponent:g} as asked: at the same cost 1/2 was no better than 1, "
            f"which is equation 1"
        )
    if is_own and anneal is not None:
        notes += _too_long(steps, is_muon=is_muon)
    return notes


def _too_many(num_steps: int, *, is_muon: bool) -> str:
    """That an anneal is longer than any that is known to pay, if it is."""
    if is_muon and num_steps > MOST_STEPS_OF_MUON:
        return (
            f"nothing is known of runs this long: the longest anneal that was compared under Muon "
            f"had {MOST_STEPS_OF_MUON:,} steps"
        )
    if not is_muon and num_steps > MOST_STEPS:
        return (
            f"not shown for runs this long: the longest anneal that was ahead of a baseline of "
            f"equal time had {MOST_STEPS:,} steps; those of {LEVEL_STEPS:,} took up to a fifth "
            f"longer than baselines of as many, and ended level with them or above, one seed each"
        )
    return ""


def most_clips(num_videos: int) -> int:
    """The largest batch for so many videos, by those that were tried."""
    return int(_MOST_CLIPS * num_videos)


def _off(why: str) -> tuple[Multigrid, tuple[str, ...]]:
    return Multigrid.named("off"), (f"schedule off: {why}",)


def timed(
    config: RunConfig, num_steps: int, *, baseline_steps: int, waits: bool = False
) -> RunConfig:
    """The configuration for a time that holds ``num_steps`` of its plan, or so many of a baseline.

    The baseline, unless the schedule was asked for, if the steps are fewer than were ever compared
    with a baseline of equal time, or than the share of the baseline's steps that the recipe plans
    without a time: decoding their clips may take so long (``waits``).
    """
    multigrid, whole = config.multigrid, config.baseline.steps
    if not config.has_chosen_schedule or multigrid.anneal is None or multigrid.steps is None:
        return config
    if num_steps < FEWEST_STEPS:
        why = f"{num_steps:,} steps of the anneal fit into the time: {_NOT_COMPARED}"
    elif num_steps * whole < multigrid.steps * baseline_steps:
        why = (
            f"{num_steps:,} steps of the anneal or {baseline_steps:,} of the baseline fit into the "
            f"time, a smaller share than was shown to come to its accuracy"
        )
        if waits:
            why += "; decoding its clips takes long, which `vcycle data prepare` may shorten"
    elif note := _too_many(num_steps, is_muon=config.optimizer.name == "muon"):
        return replace(config, schedule_notes=(*config.schedule_notes, note))
    else:
        return config
    off = multigrid.with_schedule("off")
    return replace(config, multigrid=off, schedule_notes=(f"schedule off: {why}",))
