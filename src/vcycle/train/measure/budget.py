"""The plan that fits into a budget of time, by measured steps.

In: a configuration, what was measured, and the seconds that are left. Out: the configuration whose
steps and validations take as many.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from dataclasses import dataclass, replace

from vcycle.config.fitting import smaller
from vcycle.config.run import RunConfig
from vcycle.config.schedule_choice import timed
from vcycle.config.sizing import epochs_text, fewest_steps, has_plan, time_text, with_steps
from vcycle.train.measure.timing import StepTimes, validation_seconds

_START_SECONDS = 3.0
"""Of starting workers and writing the last checkpoint, which a budget leaves room for."""
_FURTHER_STEPS = 12
"""Up to which the paper's schedule may take less time with more steps: what is left for a shape is
rounded."""
_VALIDATION_SHARE = 0.1
"""Of a budget, at most, if it leaves room for more than one validation."""
_FEW_EPOCHS = 10.0
_MANY_TIMES = 10
"""The epochs that a recipe has without a time."""
_WAITING_SHARE = 0.2
"""Of a plan's seconds: from here on it is decoding that makes a plan long."""


@dataclass(frozen=True)
class Budget:
    """So many seconds for a run, since ``began`` on the monotonic clock."""

    seconds: float
    began: float

    @property
    def left(self) -> float:
        """Seconds that steps and validations may take."""
        return self.seconds - (time.monotonic() - self.began) - _START_SECONDS


def fit_budget(
    config: RunConfig, times: StepTimes, seconds: float, *, val_videos: int, spent: float = 0.0
) -> RunConfig:
    """The same schedule, longer or shorter, so that steps and validations take ``seconds``.

    Validations are fewer if they would take more than a tenth. Raises ValueError if the shortest
    plan takes longer; ``spent`` are seconds of the budget that are gone.
    """
    one, final = validation_seconds(config, times, val_videos)
    often = int(_VALIDATION_SHARE * seconds / one) if one else config.evaluation.times
    count = min(config.evaluation.times, max(1, often))
    config = replace(config, evaluation=replace(config.evaluation, times=count))
    left = seconds - count * one - final
    longest = _longest(config, times, left)
    off = replace(config, multigrid=config.multigrid.with_schedule("off"))
    is_chosen = config.has_chosen_schedule and config.multigrid.anneal is not None
    choices = (config, off) if is_chosen else (config,)
    if longest is not None and is_chosen:
        plan, plain = longest.plan(), _longest(off, times, left)
        config = timed(
            config,
            len(plan),
            baseline_steps=0 if plain is None else len(plain.plan()),
            waits=times.waiting_share(plan) > _WAITING_SHARE,
        )
        longest = _longest(config, times, left)
    if longest is None:
        # With more time validations take up to a tenth, and the other schedule may be chosen.
        shortest = [with_steps(each, fewest_steps(each)).plan() for each in choices]
        needed = max(map(times.plan, shortest)) + count * one + final
        raise ValueError(
            f"--time {time_text(seconds + spent)}: the shortest plan of {config.model.name} at "
            f"{config.baseline.shape} takes {needed:.0f} s after {spent:.0f} s of measuring; give "
            f"--time {time_text(_next_round(spent + 1.2 * needed))}{_or_smaller(config)}"
        )
    epochs = epochs_text(longest.plan().epochs)
    asked = seconds + spent
    note = f"{epochs} epochs fit into the {time_text(asked)} asked for"
    if longest.plan().epochs < _FEW_EPOCHS:
        note += f": too few to train well; give more time{_or_smaller(config)}"
    if longest.baseline.epochs > _MANY_TIMES * config.baseline.epochs:
        epochs = epochs_text(config.baseline.epochs)
        note += f"; without --time a baseline would have {epochs}, so less time will do"
    return replace(longest, steps_note=note, fitted_seconds=round(asked))


def _longest(config: RunConfig, times: StepTimes, seconds: float) -> RunConfig | None:
    """The same schedule with as many steps as fit into ``seconds``; None if not one plan fits."""

    def took(steps: int) -> float:
        planned = next(each for each in range(steps, least - 1, -1) if has_plan(config, each))
        return times.plan(with_steps(config, planned).plan())

    least = near = fewest_steps(config)
    if took(least) <= seconds:
        most = least
        while took(most) < seconds and most < 10**8:
            most *= 2
        near = least + bisect_right(range(least, most + 1), seconds, key=took) - 1
    fitting = (
        with_steps(config, steps)
        for steps in range(near + _FURTHER_STEPS, least - 1, -1)
        if has_plan(config, steps) and took(steps) <= seconds
    )
    return next(fitting, None)


def _or_smaller(config: RunConfig) -> str:
    """What a sentence that begins with 'give' may end with."""
    found = smaller(config)
    return f", or a smaller model or shape, such as {found}" if found else ""


def _next_round(seconds: float) -> float:
    """No less than these: from two minutes on a number of whole minutes."""
    return math.ceil(seconds) if seconds < 120 else 60 * math.ceil(seconds / 60)
