"""A device that has run out of memory says so in several ways.

In: a piece of code that allocates on a device, or what one raised. Out: torch.OutOfMemoryError, or
whether it was that, whichever way it was said.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Of the CUDA runtime, cuBLAS and cuDNN, whose own memory torch's allocator does not give them; and
# of torch's allocator on a CPU.
_SAID = ("out of memory", "ALLOC_FAILED", "allocate memory", "not enough memory")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device, or a CPU, could not allocate."""
    return any(said in str(error) for said in _SAID)


@contextmanager
def out_of_memory_by_name() -> Iterator[None]:
    """Raise torch.OutOfMemoryError where a library or the driver could not allocate either."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise torch.OutOfMemoryError(str(error)) from None
        raise
