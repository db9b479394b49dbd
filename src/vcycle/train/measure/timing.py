"""How long a run will take, from measured steps, before its first one; and the plan for a budget.

In: seconds of each kind of step and of decoding a clip, as the rehearsal measured them. Out:
seconds for each phase and in all, or the configuration whose steps fit into given seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from vcycle.config.run import RunConfig
from vcycle.config.schedule_choice import timed
from vcycle.config.sizing import epochs_text, fewest_steps, has_plan, time_text, with_steps
from vcycle.schedule.base_shapes import ShortShape
from vcycle.schedule.phases import Phase
from vcycle.schedule.plan import MiniBatch, Plan, Step
from vcycle.schedule.shape import Shape

MANY_SECONDS = 6 * 3600.0
"""Of a run: from here on it is said what would take less."""
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


class Kind(NamedTuple):
    """What decides what a step costs: its shape, its batch size, and the share of tokens it keeps.

    >>> Kind(Shape(8, 112, 112), 128, 0.5).num_pixels
    6422528.0
    """

    shape: Shape
    batch_size: int
    token_share: float = 1.0

    @classmethod
    def of(cls, step: Step | MiniBatch | ShortShape) -> Kind:
        """The kind of a step."""
        return cls(step.shape, step.batch_size, step.token_share)

    @property
    def num_pixels(self) -> float:
        """Of the whole batch, those of tokens that are dropped left out."""
        return self.batch_size * self.shape.num_pixels * self.token_share


@dataclass(frozen=True)
class StepTimes:
    """What was measured before step 0.

    Args:
        model: seconds of a step on this process, without its data, by kind.
        decode: seconds that one worker takes for a clip, by shape.
        view_decode: for a view of a validation, if not as for a clip.
        workers: that decode at the same time; 0 if the training process does.
        shared_cores: cores that the model and the workers share; 0 if the model has a device of
            its own.
        processes: that share every batch.
        view_seconds: of scoring one view in a validation, without its data.
        slowdown: how many times as long a step takes if model and workers are at it together, of
            what these numbers say.
    """

    model: Mapping[Kind, float]
    decode: Mapping[Shape, float]
    workers: int
    shared_cores: int = 0
    model_threads: int = 1
    processes: int = 1
    view_seconds: float = 0.0
    view_decode: float | None = None
    slowdown: float = 1.0

    def step(self, kind: Kind) -> float:
        """Seconds of a step with its data: the slower of the model and the loader."""
        decoding = kind.batch_size / self.processes * self._decode(kind.shape)
        apart = self._overlapped(self._model(kind), decoding)
        return self.slowdown * apart

    def waiting_share(self, plan: Plan) -> float:
        """The share of a plan's seconds that clips cost: waiting, or cores given to decoding."""
        model = sum(each.steps * self._model(Kind.of(each)) for each in plan.mini_batches())
        return 1 - self.slowdown * model / self.plan(plan)

    def slowest_to_decode(self, plan: Plan) -> tuple[Shape, float, float]:
        """The shape at which the workers are furthest behind the model.

        With the clips a second that the model takes there, and those that one worker decodes.
        """
        kinds = map(Kind.of, plan.mini_batches())
        speeds = {kind: kind.batch_size / self.processes / self._model(kind) for kind in kinds}
        kind = max(speeds, key=lambda each: speeds[each] * self._decode(each.shape))
        return kind.shape, speeds[kind], 1 / self._decode(kind.shape)

    def validation(self, shape: Shape, views: int) -> float:
        """Seconds of scoring so many views over all processes."""
        own = views / self.processes
        decoding = self._decode(shape) if self.view_decode is None else self.view_decode
        return self._overlapped(own * self.view_seconds, own * decoding)

    def phase(self, phase: Phase) -> float:
        """Seconds of a phase, without validations."""
        counts = phase.base.counts(phase.first_step, phase.end_step)
        shapes = zip(counts, phase.base.short_cycle, strict=True)
        return sum(count * self.step(Kind.of(short)) for count, short in shapes)

    def plan(self, plan: Plan) -> float:
        """Seconds of all steps, without validations."""
        return sum(self.phase(phase) for phase in plan.phases)

    def _model(self, kind: Kind) -> float:
        """Of a kind that was not measured: as much a pixel as the nearest of those that were."""
        if kind in self.model:
            return self.model[kind]
        near = min(self.model, key=lambda each: abs(math.log(each.num_pixels / kind.num_pixels)))
        return self.model[near] * kind.num_pixels / near.num_pixels

    def _decode(self, shape: Shape) -> float:
        near = min(self.decode, key=lambda each: abs(each.num_pixels - shape.num_pixels))
        return self.decode[near]

    def _overlapped(self, model: float, work: float) -> float:
        if not self.workers:
            return model + work
        if not self.shared_cores:
            return max(model, work / self.workers)
        shared = (model * self.model_threads + work) / self.shared_cores
        return max(model, work / min(self.workers, self.shared_cores), shared)


@dataclass(frozen=True)
class Prediction:
    """What a run will take, in seconds: its phases, and its validations with the final one."""

    phases: tuple[float, ...]
    validations: float

    @property
    def steps(self) -> float:
        """Seconds of all steps, which a run's ``result.json`` gives as ``seconds``."""
        return sum(self.phases)

    @property
    def total(self) -> float:
        """Steps and validations."""
        return self.steps + self.validations


def predict(config: RunConfig, times: StepTimes, *, val_videos: int) -> Prediction:
    """What a run will take by measured times."""
    plan = config.plan()
    one, final = _validation_seconds(config, times, val_videos)
    phases = tuple(times.phase(phase) for phase in plan.phases)
    return Prediction(phases, one * min(config.evaluation.times, len(plan)) + final)


def _validation_seconds(
    config: RunConfig, times: StepTimes, val_videos: int
) -> tuple[float, float]:
    """Seconds of one validation, and of the final evaluation; 0 without one."""
    one, final = (
        times.validation(
            each.baseline.shape, val_videos * each.evaluation.num_clips * each.evaluation.num_crops
        )
        if each is not None
        else 0.0
        for each in (config, config.final)
    )
    return one, final


def fit_budget(
    config: RunConfig, times: StepTimes, seconds: float, *, val_videos: int, spent: float = 0.0
) -> RunConfig:
    """The same schedule, longer or shorter, so that steps and validations take ``seconds``.

    Validations are fewer if they would take more than a tenth. Raises ValueError if the shortest
    plan takes longer; ``spent`` are seconds of the budget that are gone.
    """
    one, final = _validation_seconds(config, times, val_videos)
    often = int(_VALIDATION_SHARE * seconds / one) if one else config.evaluation.times
    count = min(config.evaluation.times, max(1, often))
    config = replace(config, evaluation=replace(config.evaluation, times=count))
    left = seconds - count * one - final
    longest = _longest(config, times, left)
    off = replace(config, multigrid=config.multigrid.with_schedule("off"))
    is_chosen = bool(config.schedule_notes) and config.multigrid.anneal is not None
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


def smaller(config: RunConfig) -> str | None:
    """Flags of a smaller model or shape than a run's; None if there is none to speak of."""
    old = config.baseline.shape
    if config.model.name != "resnet3d_tiny":
        shape = Shape(8, 112, 112)
        return f"--model resnet3d_tiny --shape {shape if _fits_in(shape, old) else old}"
    frames, side = max(4, old.frames // 2), max(32, min(old.height, old.width) // 3 * 2 // 16 * 16)
    shape = Shape(frames, side, side)
    return f"--shape {shape}" if _fits_in(shape, old) and shape != old else None


def _fits_in(shape: Shape, other: Shape) -> bool:
    return (
        shape.frames <= other.frames and shape.height <= other.height and shape.width <= other.width
    )


def _or_smaller(config: RunConfig) -> str:
    """What a sentence that begins with 'give' may end with."""
    found = smaller(config)
    return f", or a smaller model or shape, such as {found}" if found else ""


def _next_round(seconds: float) -> float:
    """No less than these: from two minutes on a number of whole minutes."""
    return math.ceil(seconds) if seconds < 120 else 60 * math.ceil(seconds / 60)
