"""What is said of a shape that a user asks for, and a model or the memory does not take.

In: the flag and the clips that a model is given. Out: one line, as a ValueError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from vcycle.models.out_of_memory import out_of_memory_by_name
from vcycle.schedule.messages import raised_text


@contextmanager
def refused_shape(
    flag: str, clips: Tensor, *, fix: str, of_memory: str = "give a smaller one"
) -> Iterator[None]:
    """Raise ValueError, with ``flag`` and a fix, if the model fails within the context.

    ``of_memory`` is the fix if memory does not hold the clips, ``fix`` if it is another failure.
    """
    try:
        with out_of_memory_by_name():
            yield
    except torch.OutOfMemoryError:
        number = "a clip of it does" if len(clips) == 1 else f"{len(clips)} clips of it do"
        raise ValueError(
            f"{flag}: {number} not fit into the memory of {clips.device}; {of_memory}"
        ) from None
    except (OSError, MemoryError):  # the machine's
        raise
    except Exception as error:  # of the model's code, which may be a user's
        reason = raised_text(error)
        raise ValueError(f"{flag}: the model does not take it ({reason}); {fix}") from error
