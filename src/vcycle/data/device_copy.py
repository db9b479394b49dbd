"""Copies from a block of host memory to a GPU, beside what the GPU is computing.

In: the memory that workers decode into, page-locked once and not for every batch. Out: tensors on
the device, and events after which their places in the memory may be written again.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

_PORTABLE = 1  # cudaHostRegisterPortable: locked for all devices of the process


class DeviceCopy:
    """Copies pieces of ``memory`` to ``device`` in a stream of its own.

    ``memory`` is page-locked until ``close``, or until nobody holds this object. If the system does
    not allow that, copies are slower and the same.
    """

    def __init__(self, memory: Tensor, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._finalizer: Any = None
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(cudart.cudaHostRegister(memory.data_ptr(), memory.numel(), _PORTABLE)) == 0:
            # It holds the memory: to give that back while it is locked would leave the lock behind.
            self._finalizer = weakref.finalize(self, _unlock, memory, self._stream)
        else:
            with suppress(RuntimeError):  # which the first launch after the error reports
                torch.zeros(1, device=device)

    def copy(self, source: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        """A piece of the memory, on the device; the caller's stream waits for it, the caller not.

        The piece may be written again once the event that is returned is over.
        """
        with torch.cuda.stream(self._stream):
            copy = source.to(self.device, non_blocking=True, copy=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(copied)
        copy.record_stream(stream)
        return copy, copied

    def wait(self) -> None:
        """Wait until all copies are done."""
        self._stream.synchronize()

    def close(self) -> None:
        """Unlock the memory, after all copies; nothing can be copied any more."""
        if self._finalizer is not None:
            self._finalizer()


def _unlock(memory: Tensor, stream: Any) -> None:
    stream.synchronize()
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    cudart.cudaHostUnregister(memory.data_ptr())
