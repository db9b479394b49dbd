"""What a run's steps take, measured before step 0.

In: a run's model, optimizer and videos. Out: seconds of each kind of step beside its workers, the
memory that it needs, and in how many pieces it fits. What was measured leaves no trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from vcycle.config.run import RunConfig
from vcycle.data.dataset import ClipDataset
from vcycle.devices.agreement import from_first
from vcycle.devices.cores import CoreUse, allowed_cores, process_cores
from vcycle.devices.fabric import Fabric
from vcycle.evaluate.loaders import num_workers
from vcycle.models.batch_statistics import running_norms
from vcycle.schedule.plan import MiniBatch
from vcycle.train.activity import Activity
from vcycle.train.gradients import Gradients, Pieces
from vcycle.train.measure.loader_speed import decode_seconds, for_timing
from vcycle.train.measure.rehearsal import Rehearsed, rehearse
from vcycle.train.measure.timing import Kind, StepTimes
from vcycle.train.measure.together import slowdown

_MEASURING_SHARE = 0.08
"""Of a budget, on a CPU; of a run without one, for timing its steps beside its workers."""


@dataclass(frozen=True)
class Measured:
    """What was measured before step 0.

    Args:
        pieces: in how many pieces a batch passes through the network, to fit into memory.
        peak_bytes: of a GPU's memory, by batch; empty on a CPU.
        times: seconds of each kind of step.
    """

    pieces: Pieces
    peak_bytes: Mapping[MiniBatch, int]
    times: StepTimes


def measure(
    gradients: Gradients,
    optimizer: torch.optim.Optimizer,
    dataset: ClipDataset,
    *,
    first_step: int,
    activity: Activity,
    budget_seconds: float | None,
) -> Measured:
    """Rehearse every mini-batch, time its decoding, and both together.

    The states of network and optimizer are as before afterwards; the pieces of ``gradients`` may
    be more. Raises ValueError for what a user has to change.
    """
    config, fabric = gradients.config, gradients.fabric
    limit = 60.0 if budget_seconds is None else _MEASURING_SHARE * budget_seconds
    before = CoreUse.now()
    rehearsed = rehearse(
        gradients,
        optimizer,
        videos=dataset.manifest,
        activity=activity,
        limit_seconds=limit,
        warn_if_long=budget_seconds is None,
    )
    if fabric.device.type == "cpu" and fabric.world_size == 1:
        _say_busy(CoreUse.now().others_since(before), activity)
    times = replace(
        _times(config, dataset, rehearsed, fabric, activity=activity),
        has_norms=bool(running_norms(gradients.network)),
    )
    if budget_seconds is None:
        left = config.plan().mini_batches(first_step=first_step)
        steps = sum(kind.steps * times.step(Kind.of(kind)) for kind in left)
        limit = min(limit, _MEASURING_SHARE * steps)
    slower = slowdown(
        gradients,
        optimizer,
        for_timing(dataset, seed=config.seed),
        times=times,
        activity=activity,
        limit_seconds=limit,
    )
    return Measured(gradients.pieces, rehearsed.peak_bytes, replace(times, slowdown=slower))


def _times(
    config: RunConfig,
    dataset: ClipDataset,
    rehearsed: Rehearsed,
    fabric: Fabric,
    *,
    activity: Activity,
) -> StepTimes:
    """What was measured, the same in all processes."""
    few = for_timing(dataset, seed=config.seed)
    decode = decode_seconds(config, few, fabric, activity=activity)
    views = None
    if dataset.kept is not None:  # views are read from files
        files, shape = replace(dataset, kept=None), config.baseline.shape
        found = decode_seconds(config, files, fabric, activity=activity, shapes=[shape])
        views = found[shape]
    on_cpu = fabric.device.type == "cpu"
    times = StepTimes(
        model=rehearsed.steps,
        decode=decode,
        workers=num_workers(config.data),
        shared_cores=process_cores() if on_cpu else 0,
        model_threads=_model_threads(),
        processes=fabric.world_size,
        view_seconds=rehearsed.view,
        view_decode=views,
    )
    return from_first(fabric, lambda: times)


def _say_busy(others: float, activity: Activity) -> None:
    """Say so if others took cores that the steps needed while these were timed."""
    cores = allowed_cores()
    if cores - others < _model_threads() - 0.5:
        activity.say(
            f"other programs kept {others:.1f} of {cores} cores busy meanwhile: times are those of "
            f"now, and far too long if that ends; for a plan by --time, begin again then"
        )


def _model_threads() -> int:
    """Of a step on a CPU, those that run at once: PyTorch starts more than a quota lets run."""
    return min(torch.get_num_threads(), process_cores())
