"""The passes of a rehearsal: how long a kind of step takes, and how much memory.

In: the run's own gradients, and random clips. Out: seconds, and on a GPU the peak of its memory; or
one line about the batch that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch import nn

from vcycle.config.run import RunConfig
from vcycle.data.batch import Batch, label_tensor
from vcycle.data.manifest import Manifest
from vcycle.data.request import StepPart
from vcycle.devices.agreement import in_all
from vcycle.devices.fabric import Fabric
from vcycle.models import set_norm_group, set_token_share
from vcycle.schedule.plan import MiniBatch
from vcycle.schedule.shape import Shape
from vcycle.train.augment import augment
from vcycle.train.clock import clock_of
from vcycle.train.gradients import Gradients, flat_gradients, out_of_memory
from vcycle.train.recording import exchanges_statistics

_LONG_SECONDS = 0.5
"""Of a step on a CPU: a longer one is timed on some of its clips."""
_FEW_PIXELS = 400_000
"""T x H x W of those clips together, an even number of at least two."""
_REPEAT_SECONDS = 1.0


class RehearsedSteps:
    """Forward and backward passes on random clips."""

    def __init__(self, gradients: Gradients, videos: Manifest) -> None:
        self.gradients, self.videos = gradients, videos
        self.config, self.network = gradients.config, gradients.network
        self.fabric = gradients.fabric

    @property
    def on_cpu(self) -> bool:
        """Whether the batches are this CPU's alone."""
        return self.fabric.device.type == "cpu" and self.fabric.world_size == 1

    def measure(self, kind: MiniBatch) -> tuple[float, int | None]:
        """Seconds of a step, and its peak memory on a GPU; cuts batches that do not fit.

        Raises ValueError if one does not fit and is not to be cut, or cannot be.
        """
        parts = self.config.micro_batches * self.fabric.world_size
        clips = kind.batch_size // parts
        while True:
            fits, seconds = True, 0.0
            try:
                seconds = self._own(kind, clips)
            except torch.OutOfMemoryError:
                if exchanges_statistics(self.network, kind, parts):  # the others wait for these
                    raise out_of_memory(kind, self.fabric) from None
                fits = False
            if not fits:  # out here the tensors of the failed attempt are gone: room to say so
                self.gradients.clear()
            if in_all(torch.tensor(fits, device=self.fabric.device), self.fabric):
                break
            has_more = self.gradients.make_room()
            self.gradients.clear()
            if not in_all(torch.tensor(not has_more, device=self.fabric.device), self.fabric):
                continue
            if self.config.accumulate != "auto" or not self.gradients.pieces.halve(kind):
                raise out_of_memory(kind, self.fabric)
        if self.fabric.world_size > 1:
            _check_all_learn(self.network)
            once = partial(self._once, kind, clips, exchanges=True)
            try:
                seconds = repeated(once, self.fabric, most=3)
            except torch.OutOfMemoryError:  # the others wait for its gradients
                raise out_of_memory(kind, self.fabric) from None
        self.network.zero_grad(set_to_none=True)
        return seconds * self.config.micro_batches, _peak_bytes(self.fabric.device)

    def _own(self, kind: MiniBatch, clips: int) -> float:
        """Seconds of a micro-batch, of which processes exchange statistics at most."""
        _forget_peak(self.fabric.device)
        seconds = self.seconds(kind, clips)
        if self.on_cpu and not self.config.compile:
            return seconds
        # The first passes chose kernels. Replays of pieces take no more memory.
        recorder = self.gradients.recorder
        if recorder is None or self.gradients.pieces.of(kind) == 1:
            _forget_peak(self.fabric.device)
        once = partial(self._once, kind, clips)
        if recorder is not None:
            once()  # is recorded
        if self.fabric.world_size == 1:
            return repeated(once, self.fabric, most=3)
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
            some = repeated(lambda: self._once(pair, few), self.fabric, most=2)
            if some * clips / few > _LONG_SECONDS:
                return some * clips / few
        set_norm_group(self.network, kind.norm_group)
        # Hardly more often than a short run itself passes through it.
        most = min(3, max(1, kind.steps - 1)) if self.on_cpu and not self.config.compile else 0
        return repeated(lambda: self._once(kind, clips), self.fabric, most=most)

    def _once(self, kind: MiniBatch, clips: int, *, exchanges: bool = False) -> None:
        """A micro-batch's passes; unless it ``exchanges``, a process may fail in them alone."""
        self.network.zero_grad(set_to_none=True)
        # Nothing here keeps the clips as they were before augmentation.
        batch = as_of_the_run(
            random_pixels(clips, kind.shape, self.fabric.device),
            self.config,
            self.videos,
        )
        self.gradients.batch(kind, batch, seed=0, exchanges=exchanges)
        if exchanges and self.gradients.recorder is not None:
            for flat in flat_gradients(self.network):
                flat.average(world_size=self.fabric.world_size)


def as_of_the_run(pixels: torch.Tensor, config: RunConfig, videos: Manifest) -> Batch:
    """(N, 3, T, H, W) uint8 as a batch of the plan, of the first class, augmented as others are."""
    plan = config.plan()
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


def _check_all_learn(network: nn.Module) -> None:
    """Processes wait for each other's gradient of every parameter, so each must have one."""
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ValueError(
                f"model: parameter {name!r} gets no gradient, which several processes would wait "
                f"for; take it out of the model, or freeze it (requires_grad=False)"
            )


def repeated(once: Callable[[], None], fabric: Fabric, *, most: int) -> float:
    """Seconds of a pass: the median of those after the first, of as many as a second allows.

    Several processes all make one more, or none if ``most`` is 0: they wait for each other.
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


def _forget_peak(device: torch.device) -> None:
    """Count the most memory that is held from now on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _peak_bytes(device: torch.device) -> int | None:
    """The most memory that was held on a GPU since."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def random_pixels(clips: int, shape: Shape, device: torch.device) -> torch.Tensor:
    """(N, 3, T, H, W) uint8, laid out as a loader's."""
    size = (clips, shape.frames, shape.height, shape.width, 3)
    generator = torch.Generator(device).manual_seed(0)
    pixels = torch.randint(256, size, dtype=torch.uint8, device=device, generator=generator)
    return pixels.permute(0, 4, 1, 2, 3)
