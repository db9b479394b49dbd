"""A rehearsal: every mini-batch of the plan passes through the model once, before step 0.

In: the model on its device and the plan. Out: the seconds of each kind of step, or one line about
the shape that does not fit. The set of shapes is finite and known, so no run has to find out in
hour 30.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from vcycle.config.run import RunConfig
from vcycle.data.batch import normalize
from vcycle.models import (
    check_model,
    commit_statistics,
    memory_format,
    set_norm_group,
    set_token_share,
)
from vcycle.schedule.plan import MiniBatch, Plan
from vcycle.schedule.shape import Shape
from vcycle.train.activity import Activity
from vcycle.train.optim import fuses, make_optimizer
from vcycle.train.timing import Kind, smaller

_LONG_SECONDS = 0.5
"""Of a step on a CPU: a longer one is timed on some of its clips."""
_FEW_PIXELS = 400_000
"""T x H x W of those clips together, at least two."""
_REPEAT_SECONDS = 1.0


@dataclass(frozen=True)
class Rehearsed:
    """Seconds without data: of a step of each kind, with its update, and of scoring a view."""

    steps: dict[Kind, float]
    view: float


def rehearse(
    network: nn.Module,
    model: nn.Module,
    plan: Plan,
    config: RunConfig,
    *,
    fabric: Fabric,
    num_classes: int,
    activity: Activity,
    limit_seconds: float,
    warn_of_days: bool,
) -> Rehearsed:
    """Check the model at each shape; then train on each mini-batch, and score one batch of views.

    ``model`` is ``network`` as Fabric runs it; the network's state is as before afterwards. A CPU
    stops timing after ``limit_seconds``. Raises
    ValueError if a layer cannot take a shape, memory cannot hold a batch, a checkpoint cannot keep
    the state, or, with several processes, a parameter is not used.
    """
    before = _as_checkpoints_keep_it(network.state_dict(), config.model.name)
    shape, clips = plan.baseline.shape, 0
    seconds: dict[Kind, float] = {}
    kinds = plan.mini_batches()
    try:
        if warn_of_days and fabric.device.type == "cpu" and fabric.world_size == 1:
            _warn_of_days(network, model, plan, config, fabric=fabric, activity=activity)
        for number, shape in enumerate(plan.shapes, 1):
            begin_count(activity, "checking", "shape", number, len(plan.shapes))
            clips = 2
            check_model(network, [shape], num_classes=num_classes, num_clips=clips)
        began = time.monotonic()
        on_cpu = fabric.device.type == "cpu" and fabric.world_size == 1
        for number, kind in enumerate(kinds, 1):
            if on_cpu and seconds and time.monotonic() - began > limit_seconds:
                activity.say(f"timed {len(seconds)} of {len(kinds)} batches, the others by pixels")
                break
            begin_count(activity, "timing", "batch", number, len(kinds), str(kind.shape))
            set_token_share(network, kind.token_share)
            shape, clips = kind.shape, kind.batch_size // (fabric.world_size * config.accumulate)
            step = _step_seconds(network, model, kind, clips, fabric=fabric)
            seconds[kind.shape, kind.batch_size] = step * config.accumulate
        update = _update_seconds(network, config, fabric)
        seconds = {kind: each + update for kind, each in seconds.items()}
        shape, clips = plan.baseline.shape, config.evaluation.batch_size
        activity.begin(f"timing a validation batch: {clips} x {shape}")
        view = _view_seconds(network, clips, shape, fabric=fabric)
    except torch.OutOfMemoryError:
        raise ValueError(
            f"shape {shape}: {clips} clips do not fit into the memory of {fabric.device}; use more "
            f"processes, a smaller --baseline.batch_size, or --accumulate 2 with norm groups that "
            f"divide its micro-batches"
        ) from None
    network.train()
    set_token_share(network, 1.0)
    network.zero_grad(set_to_none=True)
    commit_statistics(network)  # what the norm layers collected must not reach step 0
    network.load_state_dict(before)
    return Rehearsed(seconds, view)


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


def _warn_of_days(
    network: nn.Module,
    model: nn.Module,
    plan: Plan,
    config: RunConfig,
    *,
    fabric: Fabric,
    activity: Activity,
) -> None:
    """Say so at once if a CPU will take days, by two clips of the smallest shape."""
    activity.begin(f"estimating how long {config.model.name} takes on a CPU")
    kind = min(plan.mini_batches(), key=lambda each: each.shape.num_pixels)
    two = replace(kind, batch_size=2, norm_group=None)
    pixels = sum(
        each.steps * each.batch_size * each.shape.num_pixels for each in plan.mini_batches()
    )
    seconds = _step_seconds(network, model, two, 2, fabric=fabric)
    days = seconds * pixels / (2 * kind.shape.num_pixels) / 86_400
    if days > 1:
        activity.say(
            f"roughly {days:.0f} days on this CPU: take a GPU, or a smaller model and shape such "
            f"as {smaller(config)}, or --time 2h"
        )


def _step_seconds(
    network: nn.Module, model: nn.Module, kind: MiniBatch, clips: int, *, fabric: Fabric
) -> float:
    """Of forward and backward; a first pass, which may tune kernels, counts only if it is long.

    A CPU that takes long is timed on some of the clips, and the rest is in proportion: memory that
    a CPU does not have cannot be tried without harm either.
    """

    def one(clips: int) -> None:
        pixels = _random_pixels(clips, kind.shape, fabric.device)
        scores = model(normalize(pixels, memory_format=memory_format(network)))
        fabric.backward(scores.logsumexp(1).sum())

    few = max(2, _FEW_PIXELS // kind.shape.num_pixels)
    if fabric.device.type == "cpu" and fabric.world_size == 1 and clips > few:
        set_norm_group(network, None)
        expected = _repeated(lambda: one(few), fabric.device, most=2) * clips / few
        if expected > _LONG_SECONDS:
            return expected
    set_norm_group(network, kind.norm_group)
    if fabric.world_size > 1:  # all processes make as many passes: they wait for each other
        one(clips)
        _check_all_learn(network)
        return _timed(lambda: one(clips), fabric.device)
    return _repeated(lambda: one(clips), fabric.device, most=3)


def _update_seconds(network: nn.Module, config: RunConfig, fabric: Fabric) -> float:
    """Of the optimizer's update of all parameters, at a rate of 0 and by an optimizer of its own.

    The parameters have the gradients of the last batch.
    """
    fused = fuses(fabric.device, config.precision)
    optimizer = make_optimizer(network, config.optimizer, fused=fused)
    return _repeated(optimizer.step, fabric.device, most=3)


def _view_seconds(network: nn.Module, clips: int, shape: Shape, *, fabric: Fabric) -> float:
    """Of one of the clips that are scored together."""
    if fabric.device.type == "cpu":
        clips = min(clips, 8)
    network.eval()

    def score() -> None:
        pixels = _random_pixels(clips, shape, fabric.device)
        network(normalize(pixels, memory_format=memory_format(network)))

    with torch.inference_mode(), fabric.autocast():
        return _repeated(score, fabric.device, most=2) / clips


def _repeated(once: Callable[[], None], device: torch.device, *, most: int) -> float:
    """Seconds of a pass: the median of those after the first, of as many as a second allows."""
    first = _timed(once, device)
    later: list[float] = []
    while len(later) < most and first + sum(later) < _REPEAT_SECONDS:
        later.append(_timed(once, device))
    return median(later) if later else first


def _timed(once: Callable[[], None], device: torch.device) -> float:
    began = time.perf_counter()
    once()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _check_all_learn(network: nn.Module) -> None:
    """Processes wait for each other's gradient of every parameter, so each must have one."""
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ValueError(
                f"model: parameter {name!r} gets no gradient, which several processes would wait "
                f"for; take it out of the model, or freeze it (requires_grad=False)"
            )


def _as_checkpoints_keep_it(state: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of a model's state, written and read as checkpoints are."""
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        copy: dict[str, Any] = torch.load(file, weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError) as error:
        raise ValueError(
            f"model {name}: a checkpoint of its state could not be read again; let get_extra_state "
            f"return tensors, numbers, strings, and lists and dictionaries of them, and give lazy "
            f"layers their sizes"
        ) from error
    return copy


def _random_pixels(clips: int, shape: Shape, device: torch.device) -> torch.Tensor:
    """(N, 3, T, H, W) uint8, laid out as a loader's."""
    size = (clips, shape.frames, shape.height, shape.width, 3)
    generator = torch.Generator(device).manual_seed(0)
    pixels = torch.randint(256, size, dtype=torch.uint8, device=device, generator=generator)
    return pixels.permute(0, 4, 1, 2, 3)
