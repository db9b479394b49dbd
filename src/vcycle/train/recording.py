"""Forward and backward passes from a recording, a CUDA graph, which the host launches at once.

In: a network and what a pass does with a batch. Out: gradients and a result, as the pass itself
leaves them. A GPU computes many small kernels faster than Python can name them; a plan has few
kinds of batches, so each is recorded once, when it comes the second time, and replayed from then
on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vcycle.config.run import RunConfig
from vcycle.devices.buffers import has_other_buffers
from vcycle.devices.fabric import Fabric
from vcycle.models import ClipKeys
from vcycle.models.frozen import has_norm_groups
from vcycle.models.out_of_memory import out_of_memory_by_name
from vcycle.schedule.plan import MiniBatch

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], None], Tensor]]
"""Runs a function once without effect; returns what repeats it, and the result that it fills."""


def make_recorder(config: RunConfig, network: nn.Module, fabric: Fabric) -> Recorder | None:
    """A recorder on GPUs: on one of the project's own networks if left to it, else if asked for.

    A model of one's own may decide on the host what it computes, which a recording would repeat.
    Passes that are recorded exchange nothing with other processes.

    Raises ValueError if that is asked for where it cannot be.
    """
    if config.cuda_graphs == "on":
        problem = _problem(config, network, fabric)
        if problem is not None:
            raise ValueError(f"cuda_graphs on: {problem}; give --cuda_graphs off")
        return Recorder(network)
    is_tried = fabric.device.type == "cuda" and fabric.world_size == 1
    is_own = config.model.entry is not None
    return Recorder(network) if config.cuda_graphs == "auto" and is_tried and is_own else None


def _problem(config: RunConfig, network: nn.Module, fabric: Fabric) -> str | None:
    """Why passes cannot be recorded; None if they can, as far as is known before one is tried."""
    if fabric.device.type != "cuda":
        return "they are for GPUs, not for a CPU"
    if fabric.world_size == 1:
        return None
    if has_other_buffers(network):
        return f"{fabric.world_size} processes exchange buffers of {config.model.name} in a pass"
    parts = fabric.world_size * config.micro_batches
    if any(exchanges_statistics(network, kind, parts) for kind in config.plan().mini_batches()):
        return "norm groups span processes, which exchange statistics in a pass"
    return None


def exchanges_statistics(network: nn.Module, kind: MiniBatch, parts: int) -> bool:
    """Whether a norm group of a batch in so many parts spans processes, which meet in each pass."""
    return has_norm_groups(network) and (kind.norm_group or 1) > kind.batch_size // parts


@dataclass(frozen=True)
class _Recording:
    """What a replay reads and writes, always at the same places."""

    replay: Callable[[], None]
    inputs: tuple[Tensor, ...]
    keys: list[Tensor]
    """Of the layers that draw by clip."""
    result: Tensor
    parameters: list[nn.Parameter]
    """Those that get a gradient."""


class Recorder:
    """Passes of ``network``, from recordings where there are some.

    All recordings share memory for their activations and for one set of gradients, so a result and
    gradients are good until the next pass of any kind; the optimizer is to have stepped by then, or
    the gradients of both passes add up, as autograd's do.

    That memory, as much as the largest batch takes, is kept from passes that are not recorded yet:
    if it runs short, ``release`` gives it back, and nothing is recorded any more.
    Memory that runs short while nothing is recorded is not theirs, and changes nothing.
    """

    def __init__(self, network: nn.Module, *, record: Record | None = None) -> None:
        self._network = network
        self._record: Record | None = record or _CudaGraphs()
        self._recordings: dict[Hashable, _Recording | None] = {}
        self._gradients: dict[nn.Parameter, Tensor] = {}

    def __call__(self, kind: Hashable, one_pass: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """``one_pass(*inputs)``, which adds to the parameters' gradients; returns its result.

        All calls with one ``kind`` are to be the same but for the values of the inputs, parameters,
        buffers and dropout seeds. The first runs as it is and chooses kernels; so do all if there
        is no memory to record one.

        Raises ValueError if the pass does what cannot be recorded.
        """
        if self._record is None:
            return one_pass(*inputs)
        if kind not in self._recordings:
            self._recordings[kind] = None
            return one_pass(*inputs)
        recording = self._recordings[kind]
        if recording is None:
            recording = self._recorded(self._record, one_pass, inputs)
            if recording is None:
                self.release()
                self._record = None
                return one_pass(*inputs)
            self._recordings[kind] = recording
        return self._replayed(recording, inputs)

    def release(self) -> bool:
        """Give all memory back and record nothing more; False if there was nothing to give."""
        had_some = any(each is not None for each in self._recordings.values())
        if had_some:
            self._record = None
        self._recordings.clear()
        self._gradients.clear()
        return had_some

    @property
    def gave_up(self) -> bool:
        """Whether passes run as they are, for want of memory."""
        return self._record is None

    def _recorded(
        self, record: Record, one_pass: Callable[..., Tensor], inputs: tuple[Tensor, ...]
    ) -> _Recording | None:
        """A pass on copies of ``inputs``, recorded; None if memory does not hold it."""
        before = {each: each.grad for each in self._network.parameters()}
        parameters: list[nn.Parameter] = []

        def with_gradients() -> Tensor:
            for parameter in before:
                parameter.grad = None
            result = one_pass(*copies)
            parameters[:] = [each for each in before if each.grad is not None]
            found = [each.grad for each in parameters if each.grad is not None]
            torch._foreach_copy_([self._gradients[each] for each in parameters], found)
            return result

        try:
            copies = tuple(each.clone() for each in inputs)
            for each in before:
                if each.requires_grad and each not in self._gradients:
                    self._gradients[each] = torch.zeros_like(each)
            with out_of_memory_by_name():
                replay, result = record(with_gradients)
        except torch.OutOfMemoryError:
            return None
        except RuntimeError as error:
            name, reason = type(self._network).__name__, str(error).splitlines()[0]
            raise ValueError(
                f"cuda_graphs: {name} does in a pass what cannot be recorded ({reason}); give "
                f"--cuda_graphs off"
            ) from error
        finally:
            for parameter, gradient in before.items():
                parameter.grad = gradient
        return _Recording(replay, copies, self._keys(), result, parameters)

    def _replayed(self, recording: _Recording, inputs: tuple[Tensor, ...]) -> Tensor:
        given = (*inputs, *self._keys())
        for place, value in zip((*recording.inputs, *recording.keys), given, strict=True):
            place.copy_(value, non_blocking=True)
        earlier = {
            each: each.grad.clone() for each in recording.parameters if each.grad is not None
        }
        recording.replay()
        for parameter in recording.parameters:
            parameter.grad = self._gradients[parameter]
        if earlier:
            torch._foreach_add_([self._gradients[each] for each in earlier], [*earlier.values()])
        return recording.result.clone()

    def _keys(self) -> list[Tensor]:
        layers = (each for each in self._network.modules() if isinstance(each, ClipKeys))
        return [layer._keys for layer in layers if layer._keys is not None]


class _CudaGraphs:
    """Records graphs that share one pool of memory: they are replayed one after the other."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        graph = torch.cuda.CUDAGraph()
        # Threads that load clips may call CUDA meanwhile; only this one is recorded.
        recording = torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local")
        with recording:
            result = function()
        return graph.replay, result
