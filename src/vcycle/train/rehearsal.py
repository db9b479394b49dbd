"""A rehearsal: every mini-batch of the plan passes through the model once, before step 0.

In: the model on its device and the plan. Out: the seconds of each kind of step, or one line about
the shape that does not fit. The set of shapes is finite and known, so no run has to find out in
hour 30.
"""

from __future__ import annotations

import io
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from vcycle.config.run import RunConfig
from vcycle.data.batch import Batch, label_tensor, normalize
from vcycle.data.manifest import Manifest
from vcycle.data.request import StepPart
from vcycle.devices.buffers import no_buffer_broadcasts
from vcycle.devices.fabric import Fabric
from vcycle.models import (
    check_model,
    discard_statistics,
    memory_format,
    set_norm_group,
    set_token_share,
)
from vcycle.schedule.plan import MiniBatch, Plan
from vcycle.schedule.shape import Shape
from vcycle.train.activity import Activity
from vcycle.train.agreement import in_all
from vcycle.train.augment import augment
from vcycle.train.clock import clock_of
from vcycle.train.compiling import compile_blocks
from vcycle.train.gradients import (
    Gradients,
    Pieces,
    flat_gradients,
    make_gradients,
    out_of_memory,
)
from vcycle.train.timing import Kind, smaller

_LONG_SECONDS = 0.5
"""Of a step on a CPU: a longer one is timed on some of its clips."""
_FEW_PIXELS = 400_000
"""T x H x W of those clips together, an even number of at least two."""
_REPEAT_SECONDS = 1.0


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
    network: nn.Module,
    model: nn.Module,
    optimizer: Optimizer,
    plan: Plan,
    config: RunConfig,
    *,
    pieces: Pieces,
    fabric: Fabric,
    videos: Manifest,
    activity: Activity,
    limit_seconds: float,
    warn_of_days: bool,
) -> Rehearsed:
    """Check the model at each shape; then train on each mini-batch, and score one batch of views.

    ``model`` is ``network`` as Fabric runs it; the states of network and optimizer are as before
    afterwards. Blocks are compiled once shapes are checked, if the configuration says so. With
    ``accumulate`` of auto, batches that do not fit are cut in ``pieces``, alike in all processes. A
    CPU that compiles nothing stops timing after ``limit_seconds``.

    Steps are the run's own, with random clips of the first class of ``videos``.

    Raises ValueError if a layer cannot take a shape, memory cannot hold a batch, a checkpoint
    cannot keep the state, or, with several processes, a parameter is not used.
    """
    kinds = plan.mini_batches()
    gradients = make_gradients(
        config, network, model, pieces, fabric=fabric, multi_label=videos.multi_label
    )
    steps = _Steps(network, plan, config, pieces, fabric, videos, gradients)
    shape, clips = plan.baseline.shape, 0
    with unchanged(network, optimizer, config.model.name):
        try:
            if warn_of_days and steps.on_cpu:
                _warn_of_days(steps, plan, config, activity=activity)
            for number, shape in enumerate(plan.shapes, 1):
                begin_count(activity, "checking", "shape", number, len(plan.shapes))
                clips = 2
                check_model(network, [shape], num_classes=videos.num_classes, num_clips=clips)
            if config.compile:
                compile_blocks(network, num_kinds=len(kinds))
            had_state = bool(optimizer.state)
            if not had_state:
                update_with_zeros(optimizer)
            with no_buffer_broadcasts(model):
                seconds, peaks = _time_steps(
                    steps, kinds, activity=activity, limit_seconds=limit_seconds
                )
            if not had_state:  # that of a resumed run is not to change
                update = _repeated(lambda: update_with_zeros(optimizer), fabric, most=3)
                seconds = {kind: each + update for kind, each in seconds.items()}
            shape, clips = plan.baseline.shape, config.evaluation.batch_size
            activity.begin(f"timing a validation batch: {clips} x {shape}")
            view = _view_seconds(network, clips, shape, fabric=fabric)
        except torch.OutOfMemoryError:
            raise ValueError(
                f"shape {shape}: {clips} clips do not fit into the memory of {fabric.device}; use "
                f"a smaller model or shape, or --evaluation.batch_size below {clips}"
            ) from None
    return Rehearsed(seconds, view, peaks)


@contextmanager
def unchanged(network: nn.Module, optimizer: Optimizer, name: str) -> Iterator[None]:
    """Leave the network as it was, and an optimizer that had no state without one.

    Raises ValueError if a checkpoint cannot keep the network's state; ``name`` is the model's.
    """
    before = _as_checkpoints_keep_it(network.state_dict(), name)
    had_state, groups = bool(optimizer.state), [dict(each) for each in optimizer.param_groups]
    yield
    network.train()
    set_token_share(network, 1.0)
    network.zero_grad(set_to_none=True)
    discard_statistics(network)  # what the norm layers collected must not reach step 0
    network.load_state_dict(before)
    if not had_state:
        optimizer.state.clear()
        for group, as_before in zip(optimizer.param_groups, groups, strict=True):
            group.clear()  # Lamb, for one, counts its steps there
            group.update(as_before)


def _time_steps(
    steps: _Steps, kinds: Sequence[MiniBatch], *, activity: Activity, limit_seconds: float
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
        seconds[Kind.of(kind)], peak = steps.measure(kind)
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


def _warn_of_days(steps: _Steps, plan: Plan, config: RunConfig, *, activity: Activity) -> None:
    """Say so at once if a CPU will take days, by two clips of the smallest shape."""
    activity.begin(f"estimating how long {config.model.name} takes on a CPU")
    smallest = min(plan.mini_batches(), key=lambda each: each.shape.num_pixels * each.token_share)
    pair = replace(smallest, batch_size=2, norm_group=None)
    pixels = sum(each.steps * Kind.of(each).num_pixels for each in plan.mini_batches())
    days = steps.seconds(pair, 2) * pixels / Kind.of(pair).num_pixels / 86_400
    if days > 1:
        flags = smaller(config)
        less = f", or a smaller model and shape such as {flags}" if flags else ""
        activity.say(f"roughly {days:.0f} days on this CPU: take a GPU{less}, or --time 2h")


def update_with_zeros(optimizer: Optimizer) -> None:
    """A step at the rate of 0 that it has by now; the first one makes the optimizer's state."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True)
class _Steps:
    """Forward and backward passes on random clips."""

    network: nn.Module
    plan: Plan
    config: RunConfig
    pieces: Pieces
    fabric: Fabric
    videos: Manifest
    gradients: Gradients

    @property
    def on_cpu(self) -> bool:
        """Whether the batches are this CPU's alone."""
        return self.fabric.device.type == "cpu" and self.fabric.world_size == 1

    def measure(self, kind: MiniBatch) -> tuple[float, int | None]:
        """Seconds of a step, and its peak memory on a GPU; cuts batches that do not fit.

        Raises ValueError if one does not fit and is not to be cut, or cannot be.
        """
        clips = kind.batch_size // (self.config.micro_batches * self.fabric.world_size)
        recorder = self.gradients.recorder
        while True:
            fits, seconds = True, 0.0
            try:
                seconds = self._own(kind, clips)
            except torch.OutOfMemoryError:
                fits = False
            if in_all(torch.tensor(fits, device=self.fabric.device), self.fabric):
                break
            self.network.zero_grad(set_to_none=True)
            has_more = recorder is not None and recorder.release()
            if self.fabric.device.type == "cuda":
                torch.cuda.empty_cache()
            if not in_all(torch.tensor(not has_more, device=self.fabric.device), self.fabric):
                continue
            if self.config.accumulate != "auto" or not self.pieces.halve(kind):
                raise out_of_memory(kind, self.fabric)
        if self.fabric.world_size > 1:
            _check_all_learn(self.network)
            once = partial(self._once, kind, clips, exchanges=True)
            try:
                seconds = _repeated(once, self.fabric, most=3)
            except torch.OutOfMemoryError:  # the others wait for its gradients
                raise out_of_memory(kind, self.fabric) from None
        self.network.zero_grad(set_to_none=True)
        return seconds * self.config.micro_batches, peak_bytes(self.fabric.device)

    def _own(self, kind: MiniBatch, clips: int) -> float:
        """Seconds of a micro-batch, nothing of which is exchanged with other processes."""
        forget_peak(self.fabric.device)
        seconds = self.seconds(kind, clips)
        if self.on_cpu and not self.config.compile:
            return seconds
        # The first passes chose kernels. Replays of pieces take no more memory.
        recorder = self.gradients.recorder
        if recorder is None or self.pieces.of(kind) == 1:
            forget_peak(self.fabric.device)
        once = partial(self._once, kind, clips)
        if recorder is not None:
            once()  # is recorded
        if self.fabric.world_size == 1:
            return _repeated(once, self.fabric, most=3)
        if recorder is not None:
            flat_gradients(self.network)  # which an exchange takes beside the rest
        return seconds

    def seconds(self, kind: MiniBatch, clips: int) -> float:
        """Of forward and backward of a micro-batch.

        A CPU that takes long is timed on some of the clips, and the rest is in proportion: memory
        that a CPU does not have cannot be tried without harm either.
        """
        set_token_share(self.network, kind.token_share)
        few = max(2, _FEW_PIXELS // kind.shape.num_pixels // 2 * 2)
        if self.on_cpu and clips > few and not self.config.compile:
            set_norm_group(self.network, None)
            pair = replace(kind, batch_size=few, norm_group=None)
            some = _repeated(lambda: self._once(pair, few), self.fabric, most=2)
            if some * clips / few > _LONG_SECONDS:
                return some * clips / few
        set_norm_group(self.network, kind.norm_group)
        # Not more often than the run itself passes through it.
        most = min(3, kind.steps - 1) if self.on_cpu and not self.config.compile else 0
        return _repeated(lambda: self._once(kind, clips), self.fabric, most=most)

    def _once(self, kind: MiniBatch, clips: int, *, exchanges: bool = False) -> None:
        """A step's passes; a process without memory must not leave others waiting for gradients."""
        self.network.zero_grad(set_to_none=True)
        pixels = _random_pixels(clips, kind.shape, self.fabric.device)
        batch = as_of_the_run(pixels, self.plan, self.config, self.videos)
        self.gradients.batch(kind, batch, seed=0, exchanges=exchanges)
        if exchanges and self.gradients.recorder is not None:
            for flat in flat_gradients(self.network):
                flat.average(world_size=self.fabric.world_size)


def as_of_the_run(pixels: torch.Tensor, plan: Plan, config: RunConfig, videos: Manifest) -> Batch:
    """(N, 3, T, H, W) uint8 as a batch of the plan, of the first class, augmented as others are."""
    step = replace(plan[0], shape=Shape(*pixels.shape[2:]), batch_size=len(pixels))
    labels = label_tensor(
        [(0,)] * len(pixels), num_classes=videos.num_classes, multi_label=videos.multi_label
    )
    batch = Batch(
        clips=pixels,
        labels=labels.to(pixels.device),
        indices=torch.zeros(len(pixels), dtype=torch.int64, device=pixels.device),
        part=StepPart(step, plan.baseline, seed=config.seed),
    )
    return augment(batch, config.augmentation, num_classes=videos.num_classes)


def _view_seconds(network: nn.Module, clips: int, shape: Shape, *, fabric: Fabric) -> float:
    """Of one of the clips that are scored together."""
    if fabric.device.type == "cpu":
        clips = min(clips, 8)
    network.eval()

    def score() -> None:
        pixels = _random_pixels(clips, shape, fabric.device)
        network(normalize(pixels, memory_format=memory_format(network)))

    with torch.inference_mode(), fabric.autocast():
        return _repeated(score, fabric, most=2) / clips


def _repeated(once: Callable[[], None], fabric: Fabric, *, most: int) -> float:
    """Seconds of a pass: the median of those after the first, of as many as a second allows.

    Several processes all make two: they wait for each other.
    """
    first = _timed(once, fabric.device)
    later: list[float] = []
    if fabric.world_size > 1:
        return _timed(once, fabric.device) if most else first
    while len(later) < most and first + sum(later) < _REPEAT_SECONDS:
        later.append(_timed(once, fabric.device))
    return median(later) if later else first


def _timed(once: Callable[[], None], device: torch.device) -> float:
    clock = clock_of(device)
    began = clock.now()
    once()
    ended = clock.now()
    clock.wait(ended)
    return clock.seconds(began, ended)


def forget_peak(device: torch.device) -> None:
    """Count the most memory that is held from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """The most memory that was held on a GPU since."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


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
