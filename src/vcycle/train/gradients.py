"""The gradients of one step: forward and backward of its batches, in as many pieces as fit.

In: the batches of a step, on the device. Out: gradients in the network's parameters, the same
whatever the number of pieces. A batch that does not fit into memory is cut in more pieces, in whole
norm groups, and the step begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcycle.config.run import RunConfig
from vcycle.data.batch import Batch, normalize
from vcycle.devices.buffers import buffer_senders
from vcycle.devices.fabric import Fabric
from vcycle.models import (
    SubBatchNorm3d,
    discard_statistics,
    has_deferred_statistics,
    memory_format,
    set_dropout_seeds,
)
from vcycle.models.frozen import training_norms
from vcycle.models.out_of_memory import out_of_memory_by_name
from vcycle.schedule.plan import MiniBatch, Plan, Step
from vcycle.schedule.shape import Shape
from vcycle.train.recording import make_recorder

Loss = Callable[[Tensor, Tensor], Tensor]
"""Scores and labels to their mean loss."""


class Pieces:
    """In how many pieces each kind of batch passes through the network, 1 to begin with."""

    def __init__(self, network: nn.Module, config: RunConfig, *, world_size: int) -> None:
        self._parts = world_size * config.micro_batches
        norms = training_norms(network)
        self._has_groups = bool(norms)
        # Others would take their statistics from pieces, and undeferred ones more than once.
        self._may_cut = has_deferred_statistics(network) and all(
            isinstance(norm, SubBatchNorm3d) for norm in norms
        )
        self._pieces: dict[tuple[Shape, float, int, int | None], int] = {}

    def of(self, kind: MiniBatch | Step) -> int:
        """The pieces of a batch of this shape, size and norm group."""
        return self._pieces.get(_key(kind), 1)

    def halve(self, kind: MiniBatch | Step) -> bool:
        """Cut the batch in at least twice as many equal pieces of whole norm groups, if it can."""
        clips = kind.batch_size // self._parts
        whole = (kind.norm_group or clips) if self._has_groups else 1
        groups = clips // whole if self._may_cut and clips % whole == 0 else 0
        now = self.of(kind)
        finer = [count for count in range(2 * now, groups + 1) if groups % count == 0]
        if finer:
            self._pieces[_key(kind)] = finer[0]
        return bool(finer)

    def found(self, plan: Plan) -> dict[MiniBatch, int]:
        """The batches of a plan that are cut."""
        return {kind: self.of(kind) for kind in plan.mini_batches() if self.of(kind) > 1}


def _key(kind: MiniBatch | Step) -> tuple[Shape, float, int, int | None]:
    return kind.shape, kind.token_share, kind.batch_size, kind.norm_group


def out_of_memory(
    kind: MiniBatch | Step,
    fabric: Fabric,
    *,
    advice: str = "--accumulate auto with norm groups that divide its micro-batches",
) -> ValueError:
    """A batch that does not fit and cannot be cut."""
    return ValueError(
        f"shape {kind.shape}: a batch of {kind.batch_size} clips does not fit into the memory of "
        f"{fabric.device}; use {advice}, more processes, or a smaller --baseline.batch_size"
    )


class Gradients:
    """Computes the gradients of a run's steps on ``model``, which is ``network`` as Fabric runs it.

    The generator that the model draws from, dropout by clip excepted, is seeded for every batch, so
    that a step that begins again draws the same. With a ``recorder`` passes are recorded and
    replayed; several processes then exchange their gradients at the end of a step, not during its
    last backward pass.
    """

    def __init__(
        self,
        network: nn.Module,
        model: nn.Module,
        config: RunConfig,
        pieces: Pieces,
        *,
        fabric: Fabric,
        multi_label: bool,
    ) -> None:
        self.network, self.model, self.config, self.pieces = network, model, config, pieces
        self.fabric, self._multi_label = fabric, multi_label
        self._loss_of: Loss = partial(F.cross_entropy, label_smoothing=config.label_smoothing)
        if multi_label:
            self._loss_of = F.binary_cross_entropy_with_logits
        self._generator = _default_generator(fabric.device)
        self.recorder = make_recorder(config, network, fabric)
        self._layout = memory_format(network)
        self._is_synchronising = False
        # DDP sends them before the first forward pass of a step, once in every process.
        self._sends_buffers = bool(buffer_senders(model))

    def step(self, step: Step, seeds: list[int], load: Callable[[], Batch]) -> Tensor:
        """(2,) the mean loss of this process's clips, and how many were classified right.

        The step has a batch for each of ``seeds``; ``load`` gives the next one, on the device, or
        the same again if it ran out of memory.
        One process may cut its batches more finely than the others: they meet in the last piece,
        or after it.
        Raises ValueError if one does not fit into memory and can be cut no further, or if the
        processes have exchanged something by then, which the others would wait for again.
        """
        batches: list[Batch] = []
        meets_later = self.recorder is not None and self.fabric.world_size > 1
        while True:
            try:
                total = self._attempt(step, seeds, batches, load)
                # Without memory for these this process begins again, and the others wait for it.
                flats = flat_gradients(self.network) if meets_later else []
                break
            except torch.OutOfMemoryError:
                # Groups that span processes exchange statistics too; these cannot be cut.
                has_exchanged = self._is_synchronising or self._sends_buffers
                has_more = self.make_room()
                if not has_more and (has_exchanged or not self.pieces.halve(step)):
                    raise out_of_memory(step, self.fabric) from None
            self.clear()  # out here the tensors of the failed attempt are gone
        for flat in flats:
            flat.average(world_size=self.fabric.world_size)
        return total

    def _attempt(
        self, step: Step, seeds: list[int], batches: list[Batch], load: Callable[[], Batch]
    ) -> Tensor:
        """``step`` with the pieces as they are; ``batches`` are those loaded by earlier ones."""
        total = torch.zeros(2, device=self.fabric.device)
        for number, seed in enumerate(seeds):
            if number == len(batches):
                batches.append(self._loaded(step, load))
            is_last = number == len(seeds) - 1
            total += self.batch(
                step, batches[number], seed=seed, num_batches=len(seeds), exchanges=is_last
            )
        return total

    def batch(
        self,
        kind: MiniBatch | Step,
        batch: Batch,
        *,
        seed: int,
        num_batches: int = 1,
        exchanges: bool = True,
    ) -> Tensor:
        """(2,) as ``step`` returns, of one batch alone, in the pieces that are known to fit.

        The last of them ``exchanges`` gradients with other processes, unless they are recorded.
        Raises torch.OutOfMemoryError, with what gradients there are by then.
        """
        self._generator.manual_seed(seed)
        pieces = self.pieces.of(kind)
        total = torch.zeros(2, device=self.fabric.device)
        size = len(batch) // pieces
        for first in range(0, len(batch), size):
            is_last = exchanges and first + size == len(batch)
            clips = slice(first, first + size)
            with out_of_memory_by_name():
                total += self._piece(kind, batch, clips, num_batches * pieces, is_last=is_last)
        return total

    def clear(self) -> None:
        """Forget an attempt that failed: its gradients, statistics and memory."""
        self.network.zero_grad(set_to_none=True)
        discard_statistics(self.network)
        if self.fabric.device.type == "cuda":
            torch.cuda.empty_cache()

    def make_room(self) -> bool:
        """Give back the memory that is kept for later passes; False if it was no recording's."""
        had_some = self.recorder is not None and self.recorder.release()
        if self.fabric.device.type == "cuda":
            torch.cuda.empty_cache()
        return had_some

    def with_room(self, task: Callable[[], None]) -> None:
        """Do ``task``, and again if it ran out of memory that recordings can give back.

        Of several processes one cannot begin again: the others would wait for it elsewhere.
        """
        try:
            with out_of_memory_by_name():
                task()
        except torch.OutOfMemoryError:
            if self.fabric.world_size > 1 or not self.make_room():
                raise
        else:
            return
        task()

    def _loaded(self, step: Step, load: Callable[[], Batch]) -> Batch:
        """The next batch. Memory must hold it whole: recordings make room for it."""
        try:
            return load()
        except torch.OutOfMemoryError:
            pass
        self.make_room()
        try:
            return load()
        except torch.OutOfMemoryError:
            advice = "--accumulate 2 or more, whose batches are loaded one by one"
            raise out_of_memory(step, self.fabric, advice=advice) from None

    def _piece(
        self,
        kind: MiniBatch | Step,
        batch: Batch,
        clips: slice,
        num_pieces: int,
        *,
        is_last: bool,
    ) -> Tensor:
        """Forward and backward of some clips of a batch: one of ``num_pieces`` of the step."""
        assert batch.part is not None, "a training batch is part of a step"
        set_dropout_seeds(self.network, batch.part.dropout_seeds[clips])
        pixels, labels = batch.clips[clips], batch.labels[clips]
        is_shared = self.fabric.world_size > 1
        if self.recorder is not None:
            key = _key(kind), num_pieces, pixels.shape, labels.shape
            one_pass = partial(self._pass, num_pieces=num_pieces, is_last=False)
            with self.fabric.no_backward_sync(self.model, enabled=is_shared):  # type: ignore[arg-type]
                return self.recorder(key, one_pass, pixels, labels)
        waits = is_shared and not is_last
        with self.fabric.no_backward_sync(self.model, enabled=waits):  # type: ignore[arg-type]
            return self._pass(pixels, labels, num_pieces=num_pieces, is_last=is_last)

    def _pass(self, pixels: Tensor, labels: Tensor, *, num_pieces: int, is_last: bool) -> Tensor:
        """(2,) the share of these clips in the step's loss, and how many are right."""
        inputs = normalize(pixels, memory_format=self._layout)  # (N, 3, T, H, W)
        scores = self.model(inputs)  # (N, classes)
        loss = self._loss_of(scores, labels) / num_pieces
        self._is_synchronising = is_last and self.fabric.world_size > 1
        self.fabric.backward(loss)
        self._is_synchronising = False
        right = loss.new_zeros(())
        if not self._multi_label:
            classes = labels if labels.ndim == 1 else labels.argmax(1)  # of mixed clips
            right += (scores.argmax(1) == classes).sum()
        return torch.stack([loss.detach(), right])


def _default_generator(device: torch.device) -> torch.Generator:
    """The generator from which a model draws on ``device``, dropout by clip excepted.

    Seeding it costs microseconds; ``torch.manual_seed``, which visits every kind of device, costs
    most of a millisecond.
    """
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]
    return torch.default_generator


@dataclass(frozen=True)
class FlatGradients:
    """The gradients of one dtype, where parameters have them, and a copy in one piece."""

    gradients: list[Tensor]
    flat: Tensor

    def average(self, *, world_size: int) -> None:
        """Replace the gradients by their means over all processes; takes no further memory."""
        torch.distributed.all_reduce(self.flat)
        self.flat.div_(world_size)
        sizes = [len(each) for each in self.gradients]
        torch._foreach_copy_(self.gradients, list(torch.split(self.flat, sizes)))


def flat_gradients(network: nn.Module) -> list[FlatGradients]:
    """What processes are to average, which have gradients of the same parameters."""
    alike: dict[torch.dtype, list[Tensor]] = {}
    for parameter in network.parameters():
        if parameter.grad is not None:
            # Autograd lays a gradient out as its parameter, which is dense and the same in all.
            memory = parameter.grad.as_strided((parameter.numel(),), (1,))
            alike.setdefault(memory.dtype, []).append(memory)
    return [FlatGradients(gradients, torch.cat(gradients)) for gradients in alike.values()]
