"""Seconds and memory of a training step, for every shape, batch and norm group of a plan.

In: a configuration. Out: rows as ``vcycle plan --step-seconds`` reads them, measured on one device
of this machine with random clips: forward, backward and optimizer, and the host's share of them.
Nothing is decoded. A batch that does not fit into memory is halved until it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcycle.config.run import RunConfig
from vcycle.data.batch import normalize
from vcycle.devices.fabric import Fabric
from vcycle.devices.launch import make_fabric
from vcycle.evaluate.setup import make_network
from vcycle.models import (
    check_model,
    commit_statistics,
    freeze,
    memory_format,
    set_dropout_seeds,
    set_norm_group,
    set_token_share,
)
from vcycle.models.out_of_memory import out_of_memory_by_name
from vcycle.schedule.messages import counted
from vcycle.schedule.plan import MiniBatch, Plan
from vcycle.schedule.shape import Shape
from vcycle.train.clock import Clock, clock_of
from vcycle.train.compiling import compile_blocks
from vcycle.train.measure.rehearsed_steps import random_pixels
from vcycle.train.optim import fuses, make_optimizer
from vcycle.train.rates import set_learning_rate
from vcycle.train.recording import Recorder, make_recorder

_CPU_PIXELS = 2**21
"""T x H x W of the clips that a CPU takes at a time: one of 32x224x224."""
_LONG_SECONDS = 10.0
"""Of the steps of one row, after which no other begins."""
_MOST_KINDS = 100
"""Of batches that are compiled: those of a plan, or of a search for better ones."""


@dataclass(frozen=True)
class StepSeconds:
    """Of one step: its three parts, all of it, and the host until everything is launched."""

    forward: float
    backward: float
    optimizer: float
    step: float
    host: float


@dataclass(frozen=True)
class StepRow:
    """What was measured of one kind of step; seconds are medians.

    Args:
        clips: on all devices together.
        batch_size: of the plan, which ``clips`` are fewer than if they do not fit, or were limited.
        norm_group: that was measured; None if it does not divide the clips of a device.
        token_share: of its tokens that a clip keeps.
        bytes: peak memory of the device; None on a CPU.
        host_seconds: about as many as ``seconds`` if the device waits to be told what to do.
    """

    shape: str
    clips: int
    batch_size: int
    norm_group: int | None
    seconds: float
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    host_seconds: float
    bytes: int | None
    token_share: float = 1.0


def timed_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pixels: Tensor,
    labels: Tensor,
    *,
    fabric: Fabric,
    clock: Clock,
) -> StepSeconds:
    """Train on (B, 3, T, H, W) uint8 pixels and (B,) labels, kernel by kernel, and time it."""
    began, marks = time.perf_counter(), [clock.now()]
    loss = F.cross_entropy(model(normalize(pixels, memory_format=memory_format(model))), labels)
    marks.append(clock.now())
    fabric.backward(loss)
    marks.append(clock.now())
    _update(model, optimizer)
    marks.append(clock.now())
    host = time.perf_counter() - began
    clock.wait(marks[-1])
    forward, backward, update = (clock.seconds(start, end) for start, end in pairwise(marks))
    return StepSeconds(forward, backward, update, clock.seconds(marks[0], marks[-1]), host)


def _update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    commit_statistics(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class StepBench:
    """A configuration's network and optimizer on this device as a run has them, to be timed."""

    def __init__(self, config: RunConfig, *, num_classes: int) -> None:
        self._fabric = make_fabric(config)
        self._num_classes = num_classes
        network = make_network(config, num_classes=num_classes, fabric=self._fabric, fresh=False)
        network.train()  # as some are not built
        freeze(network, config.model.freeze)
        fused = fuses(self._fabric.device, config.precision)
        optimizer = make_optimizer(network, config.optimizer, fused=fused)
        set_learning_rate(optimizer, 1e-6)  # weights stay finite, however long they are timed
        self.network = network
        self._model, self._optimizer = self._fabric.setup(network, optimizer)
        if config.model.entry is None:
            self._check_own_model(config.plan())
        if config.compile:
            compile_blocks(network, num_kinds=_MOST_KINDS)
        self._config = config
        self._recorder: Recorder | None = None

    def _check_own_model(self, plan: Plan) -> None:
        """Raise ValueError if a user's model cannot train on clips of the plan."""
        for shape, token_share in plan.clip_kinds:
            set_token_share(self.network, token_share)
            with self._fabric.autocast():
                check_model(self.network, shape, num_classes=self._num_classes)

    @property
    def device(self) -> torch.device:
        """Which the steps are measured on."""
        return self._fabric.device

    @property
    def device_name(self) -> str:
        """That of a GPU, or how many threads of a CPU there are."""
        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return counted(torch.get_num_threads(), "CPU thread")

    def measure(
        self,
        shape: Shape,
        clips: int,
        *,
        norm_group: int | None,
        repeats: int,
        token_share: float = 1.0,
    ) -> tuple[StepSeconds, int | None]:
        """Medians of up to ``repeats`` steps, after two that choose kernels; and the peak memory.

        If the configuration records CUDA graphs, ``step`` and ``host`` are those of replayed steps,
        the parts those of one that is launched operation by operation.

        Raises torch.OutOfMemoryError if the clips do not fit into a GPU.
        """
        # What another kind of step recorded is of no more use, and would be counted as memory.
        self._recorder = make_recorder(self._config, self.network, self._fabric)
        set_norm_group(self._model, norm_group)
        set_token_share(self._model, token_share)
        set_dropout_seeds(self._model, np.arange(clips, dtype=np.uint64))
        pixels = random_pixels(clips, shape, self.device)
        labels = torch.arange(clips, device=self.device) % self._num_classes
        clock, began = clock_of(self.device), time.monotonic()

        def step() -> StepSeconds:
            return timed_step(
                self._model, self._optimizer, pixels, labels, fabric=self._fabric, clock=clock
            )

        on_gpu = self.device.type == "cuda"
        for _ in range(2 if on_gpu else 1):
            step()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        steps = [step()]
        while len(steps) < repeats and time.monotonic() - began < _LONG_SECONDS:
            steps.append(step())
        columns = zip(*map(astuple, steps), strict=True)
        medians = StepSeconds(*(median(column) for column in columns))
        if self._recorder is not None:
            kind = shape, clips, norm_group, token_share
            medians = self._replayed(kind, pixels, labels, medians, repeats=repeats)
        return medians, torch.cuda.max_memory_allocated(self.device) if on_gpu else None

    def _replayed(
        self, kind: object, pixels: Tensor, labels: Tensor, parts: StepSeconds, *, repeats: int
    ) -> StepSeconds:
        """``parts`` with the step and host seconds of replays."""
        assert self._recorder is not None
        clock, rows = clock_of(self.device), []
        for _ in range(2 + repeats):
            began, start = time.perf_counter(), clock.now()
            self._recorder(kind, self._pass, pixels, labels)
            _update(self._model, self._optimizer)
            host, end = time.perf_counter() - began, clock.now()
            clock.wait(end)
            rows.append((clock.seconds(start, end), host))
        step, host = (median(column) for column in zip(*rows[2:], strict=True))  # two record
        return replace(parts, step=step, host=host)

    def _pass(self, pixels: Tensor, labels: Tensor) -> Tensor:
        inputs = normalize(pixels, memory_format=memory_format(self._model))
        loss = F.cross_entropy(self._model(inputs), labels)
        self._fabric.backward(loss)
        return loss.detach()

    def row(self, kind: MiniBatch, clips: int, *, num_devices: int, repeats: int) -> StepRow:
        """The row of a kind of step, of which this device takes ``clips``, or what fits of them.

        Raises ValueError if one clip does not fit.
        """
        while True:
            row = self.row_if_it_fits(kind, clips, num_devices=num_devices, repeats=repeats)
            if row is not None:
                return row
            if clips == 1:
                raise ValueError(
                    f"shape {kind.shape}: one clip does not fit into the memory of "
                    f"{self.device}; give a smaller --shape or --model"
                )
            clips //= 2

    def row_if_it_fits(
        self, kind: MiniBatch, clips: int, *, num_devices: int, repeats: int
    ) -> StepRow | None:
        """The row of a kind of step, of which this device takes ``clips``; None without memory."""
        group = norm_group_of(kind, clips)
        try:
            with out_of_memory_by_name():
                seconds, peak = self.measure(
                    kind.shape,
                    clips,
                    norm_group=group,
                    repeats=repeats,
                    token_share=kind.token_share,
                )
            return _step_row(kind, clips * num_devices, group, seconds, peak)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ValueError(
                f"shape {kind.shape}: {clips} clips are too few for this network's batch norm; "
                f"give a larger --max-clips"
            ) from error
        except torch.OutOfMemoryError:
            pass
        # Out here the tensors of the failed step are gone.
        self._optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return None


def _step_row(
    kind: MiniBatch, clips: int, norm_group: int | None, seconds: StepSeconds, peak: int | None
) -> StepRow:
    """The row of so many clips of a kind of step, on all devices together."""
    return StepRow(
        shape=str(kind.shape),
        clips=clips,
        batch_size=kind.batch_size,
        norm_group=norm_group,
        seconds=seconds.step,
        forward_seconds=seconds.forward,
        backward_seconds=seconds.backward,
        optimizer_seconds=seconds.optimizer,
        host_seconds=seconds.host,
        bytes=peak,
        token_share=kind.token_share,
    )


def norm_group_of(kind: MiniBatch, clips: int) -> int | None:
    """The norm group of so many clips of a kind of step; None if it does not divide them."""
    group = kind.norm_group
    return group if group is not None and clips % group == 0 else None


def clips_of(
    kind: MiniBatch, device: torch.device, *, num_devices: int = 1, max_clips: int | None = None
) -> int:
    """The clips of one device's share of a batch that are measured, in whole norm groups if any.

    At most ``max_clips``; None takes all on a GPU, and on a CPU those of two million pixels.
    """
    share = max(1, kind.batch_size // num_devices)
    if max_clips is None and device.type == "cpu":
        max_clips = max(1, _CPU_PIXELS // kind.shape.num_pixels)
    clips = min(share, max_clips or share)
    whole = clips - clips % (kind.norm_group or 1)
    return whole or clips


def step_kinds(plan: Plan) -> list[MiniBatch]:
    """The kinds of step of a plan, and the baseline's own, cheapest clip first."""
    full = plan.baseline_step
    kinds = list(plan.mini_batches())
    visited = {(each.shape, each.batch_size) for each in kinds}
    return kinds if (full.shape, full.batch_size) in visited else [*kinds, full]


def bench_steps(
    bench: StepBench,
    plan: Plan,
    *,
    num_devices: int = 1,
    max_clips: int | None = None,
    repeats: int = 5,
    progress: Callable[[StepRow], None] | None = None,
) -> list[StepRow]:
    """A row for each kind of step of a plan, cheapest clip first.

    ``num_devices`` share each batch; one of them is here and is timed alone, without the exchange
    of gradients. Kinds that come to the same clips and norm group are measured once. Raises
    ValueError if a number is below 1, or one clip does not fit into memory.
    """
    numbers = {"num_devices": num_devices, "max_clips": max_clips, "repeats": repeats}
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise ValueError(f"{name} {number}: give at least 1")
    rows: list[StepRow] = []
    seen: set[tuple[Shape, float, int, int | None]] = set()
    for kind in step_kinds(plan):
        clips = clips_of(kind, bench.device, num_devices=num_devices, max_clips=max_clips)
        key = kind.shape, kind.token_share, clips, norm_group_of(kind, clips)
        if key not in seen:
            seen.add(key)
            rows.append(bench.row(kind, clips, num_devices=num_devices, repeats=repeats))
            if progress is not None:
                progress(rows[-1])
    return rows
