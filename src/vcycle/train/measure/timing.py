"""How long a run will take, from measured steps, before its first one.

In: seconds of each kind of step and of decoding a clip, as the rehearsal measured them. Out:
seconds for each phase and in all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vcycle.config.run import RunConfig
from vcycle.evaluate.norms import num_norm_clips
from vcycle.schedule.base_shapes import ShortShape
from vcycle.schedule.phases import Phase
from vcycle.schedule.plan import MiniBatch, Plan, Step
from vcycle.schedule.shape import Shape

MANY_SECONDS = 6 * 3600.0
"""Of a run: from here on it is said what would take less."""


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
        model_threads: that the model takes of those cores.
        processes: that share every batch.
        view_seconds: of scoring one view in a validation, without its data.
        slowdown: how many times as long a step takes if model and workers are at it together, of
            what these numbers say.
        has_norms: whether the network has norm statistics to estimate.
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
    has_norms: bool = True

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
class RunSeconds:
    """What a run will take, in seconds: its phases, and its validations with what ends the run."""

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


def run_seconds(config: RunConfig, times: StepTimes, *, val_videos: int) -> RunSeconds:
    """What a run will take by measured times."""
    plan = config.plan()
    one, final = validation_seconds(config, times, val_videos)
    phases = tuple(times.phase(phase) for phase in plan.phases)
    return RunSeconds(phases, one * min(config.evaluation.times, len(plan)) + final)


def validation_seconds(config: RunConfig, times: StepTimes, val_videos: int) -> tuple[float, float]:
    """Seconds of one validation, and of what ends the run; 0 if nothing does.

    That is the final evaluation, and before the last validation an estimate of norm statistics,
    which takes about as long as scoring as many views, of the weights and of their average.
    """
    networks = (2 if config.ema_decay else 1) if times.has_norms else 0
    norms = times.validation(config.baseline.shape, networks * num_norm_clips(config))
    one, final = (
        times.validation(
            each.baseline.shape, val_videos * each.evaluation.num_clips * each.evaluation.num_crops
        )
        if each is not None
        else 0.0
        for each in (config, config.final)
    )
    return one, norms + final
