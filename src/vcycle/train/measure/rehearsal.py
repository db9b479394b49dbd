"""A rehearsal: every mini-batch of the plan passes through the model once, before step 0.

In: the model on its device and the plan. Out: the seconds of each kind of step, or one line about
the shape that does not fit. The set of shapes is finite and known, so no run has to find out in
hour 30.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer

from vcycle.config.fitting import smaller
from vcycle.config.run import RunConfig
from vcycle.data.batch import normalize
from vcycle.data.manifest import Manifest
from vcycle.devices.buffers import no_buffer_broadcasts
from vcycle.devices.fabric import Fabric
from vcycle.evaluate.checkpoint import weights_bytes
from vcycle.models import check_model, discard_statistics, memory_format, set_token_share
from vcycle.models.buffers import restored_buffers
from vcycle.models.check import TOO_FEW_VALUES
from vcycle.models.pickled import load_pickled
from vcycle.schedule.messages import duration
from vcycle.schedule.plan import MiniBatch
from vcycle.schedule.shape import Shape
from vcycle.train.activity import Activity
from vcycle.train.compiling import compile_blocks
from vcycle.train.gradients import Gradients
from vcycle.train.measure.rehearsed_steps import RehearsedSteps, random_pixels, repeated
from vcycle.train.measure.timing import MANY_SECONDS, Kind


@dataclass(frozen=True)
class Rehearsed:
    """What was measured without data.

    Args:
        steps: seconds of a step of each kind, with its update.
        view: seconds of scoring a view.
        peak_bytes: the most memory of a GPU that each batch held: weights, optimizer state,
            gradients, activations and its clips. Empty on a CPU, which counts none of it.
    """

    steps: dict[Kind, float]
    view: float
    peak_bytes: dict[MiniBatch, int]


def rehearse(
    gradients: Gradients,
    optimizer: Optimizer,
    *,
    videos: Manifest,
    activity: Activity,
    limit_seconds: float,
    warn_if_long: bool,
) -> Rehearsed:
    """Check the model at each shape; then train on each mini-batch, and score one batch of views.

    The states of network and optimizer are as before afterwards. Blocks are compiled once shapes
    are checked, if the configuration says so. With ``accumulate`` of auto, batches that do not fit
    are cut in pieces, alike in all processes. A CPU that compiles nothing stops timing after
    ``limit_seconds``.

    Steps are the run's own, with random clips of the first class of ``videos``.

    Raises ValueError if a layer cannot take a shape, memory cannot hold a batch, a checkpoint
    cannot keep the state, a buffer that it keeps changes its size, or, with several processes, a
    parameter is not used.
    """
    config, network, fabric = gradients.config, gradients.network, gradients.fabric
    plan = config.plan()
    kinds, clip_kinds = plan.mini_batches(), plan.clip_kinds
    steps = RehearsedSteps(gradients, videos)
    shape, clips = plan.baseline.shape, 2
    with unchanged(network, optimizer, config.model.name) as before:
        try:
            if warn_if_long and steps.on_cpu:
                _warn_of_a_long_run(steps, config, activity=activity)
                discard_statistics(network)
            for number, (shape, token_share) in enumerate(clip_kinds, 1):
                begin_count(activity, "checking", "shape", number, len(clip_kinds))
                set_token_share(network, token_share)
                check_model(network, [shape], num_classes=videos.num_classes, num_clips=clips)
                _check_sizes(network, before)
            set_token_share(network, 1.0)
            if config.compile:
                compile_blocks(network, num_kinds=len(kinds))
            had_state = bool(optimizer.state)
            if not had_state:
                update_with_zeros(optimizer)
            with no_buffer_broadcasts(gradients.model):
                seconds, peaks = _time_steps(
                    steps, kinds, activity=activity, limit_seconds=limit_seconds
                )
            if not had_state:  # that of a resumed run is not to change
                update = repeated(lambda: update_with_zeros(optimizer), fabric, most=3)
                seconds = {kind: each + update for kind, each in seconds.items()}
            shape, clips = plan.baseline.shape, config.evaluation.batch_size
            activity.begin(f"timing a validation batch: {clips} x {shape}")
            view = _view_seconds(network, clips, shape, fabric=fabric, compiles=config.compile)
        except torch.OutOfMemoryError:
            fewer = f", or --evaluation.batch_size below {clips}" if clips > 2 else ""
            raise ValueError(
                f"shape {shape}: {clips} clips do not fit into the memory of {fabric.device}; use "
                f"a smaller model or shape{fewer}"
            ) from None
    return Rehearsed(seconds, view, peaks)


@contextmanager
def unchanged(network: nn.Module, optimizer: Optimizer, name: str) -> Iterator[dict[str, Any]]:
    """Leave the network as it was, and an optimizer that had no state without one.

    Yields the network's state. A buffer that no checkpoint keeps may change its size, as a table
    of positions for the last clip does; it is then left as it is. Raises ValueError if a checkpoint
    cannot keep the network's state; ``name`` is the model's.
    """
    before = _as_checkpoints_keep_it(network.state_dict(), name)
    had_state = bool(optimizer.state)
    with restored_buffers(network):
        yield before
    discard_statistics(network)  # what the norm layers collected must not reach step 0
    _check_sizes(network, before)
    network.train()
    set_token_share(network, 1.0)
    network.zero_grad(set_to_none=True)
    network.load_state_dict(before)
    if not had_state:
        optimizer.state.clear()


def _time_steps(
    steps: RehearsedSteps, kinds: Sequence[MiniBatch], *, activity: Activity, limit_seconds: float
) -> tuple[dict[Kind, float], dict[MiniBatch, int]]:
    """Seconds and peak memory of each kind of step."""
    began = time.monotonic()
    seconds: dict[Kind, float] = {}
    peaks: dict[MiniBatch, int] = {}
    for number, kind in enumerate(kinds, 1):
        is_late = seconds and time.monotonic() - began > limit_seconds
        if steps.on_cpu and is_late and not steps.config.compile:  # a run is to compile nothing
            activity.say(f"timed {len(seconds)} of {len(kinds)} batches, the others by pixels")
            break
        begin_count(activity, "timing", "batch", number, len(kinds), str(kind.shape))
        try:
            seconds[Kind.of(kind)], peak = steps.measure(kind)
        except ValueError as error:
            if TOO_FEW_VALUES in str(error):  # then of a single clip, by the layer's name
                num_classes = steps.videos.num_classes
                check_model(steps.network, [kind.shape], num_classes=num_classes, num_clips=1)
            raise
        if peak is not None:
            peaks[kind] = peak
    return seconds, peaks


def begin_count(
    activity: Activity, doing: str, what: str, number: int, total: int, detail: str = ""
) -> None:
    """Say which of several things is under way, such as ``checking 10 shapes: 3 of 10``."""
    many = {"shape": "shapes", "batch": "batches"}[what] if total > 1 else what
    text = f"{doing} {total} {many}: {number} of {total}" + (f", {detail}" if detail else "")
    if number == 1:
        activity.begin(text)
    else:
        activity.update(text)


def _warn_of_a_long_run(steps: RehearsedSteps, config: RunConfig, *, activity: Activity) -> None:
    """Say so at once if a CPU will take long, by two clips of the smallest shape."""
    activity.begin(f"estimating how long {config.model.name} takes on a CPU")
    kinds = config.plan().mini_batches()
    smallest = min(kinds, key=lambda each: each.shape.num_pixels * each.token_share)
    set_token_share(steps.network, smallest.token_share)
    check_model(steps.network, [smallest.shape], num_classes=steps.videos.num_classes, num_clips=2)
    pair = replace(smallest, batch_size=2, norm_group=None)
    pixels = sum(each.steps * Kind.of(each).num_pixels for each in kinds)
    seconds = steps.seconds(pair, 2) * pixels / Kind.of(pair).num_pixels
    if seconds > MANY_SECONDS:
        flags = smaller(config)
        less = f", or a smaller model and shape such as {flags}" if flags else ""
        activity.say(f"roughly {duration(seconds)} on this CPU: take a GPU{less}, or --time 2h")


def update_with_zeros(optimizer: Optimizer) -> None:
    """A step at the rate of 0 that it has by now; the first one makes the optimizer's state."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _view_seconds(
    network: nn.Module, clips: int, shape: Shape, *, fabric: Fabric, compiles: bool
) -> float:
    """Of one of the clips that are scored together."""
    if fabric.device.type == "cpu":
        clips = min(clips, 8)
    network.eval()

    def score() -> None:
        pixels = random_pixels(clips, shape, fabric.device)
        network(normalize(pixels, memory_format=memory_format(network)))

    with torch.no_grad(), fabric.autocast():
        if compiles:
            score()  # takes as long as the compiler does
        return repeated(score, fabric, most=2) / clips


def _check_sizes(network: nn.Module, before: dict[str, Any]) -> None:
    """Raise ValueError if a checkpoint would not fit the network as it was built."""
    for name, value in network.state_dict().items():
        if isinstance(value, Tensor) and (name not in before or before[name].shape != value.shape):
            raise ValueError(
                f"model: buffer {name!r} changes its size with the clip; register it with "
                f"persistent=False"
            )


def _as_checkpoints_keep_it(state: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of a model's state, written and read as checkpoints are."""
    file = io.BytesIO()
    try:
        weights_bytes(state, {})
        torch.save(state, file)
        file.seek(0)
        copy: dict[str, Any] = load_pickled(file)
    except (KeyError, RuntimeError, SafetensorError) as error:  # of safetensors
        raise ValueError(
            f"model {name}: safetensors cannot hold its state ({error}); register such a buffer "
            f"with persistent=False, or in another dtype or layout"
        ) from error
    except (pickle.PickleError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"model {name}: a checkpoint of its state could not be read again; let get_extra_state "
            f"return tensors, numbers, strings, and lists and dictionaries of them, and give lazy "
            f"layers their sizes"
        ) from error
    return copy
