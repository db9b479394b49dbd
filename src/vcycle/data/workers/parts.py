"""What the loader and its workers agree on: parts of batches go in, answers come out.

``processes`` and ``threads`` are the two kinds of pools, with the same methods; they share
``decode_part``. The pixels never travel: they are written into the pool's memory.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.dataset import ClipDataset, ClipFacts
from vcycle.data.decode.remote import FETCH_SECONDS
from vcycle.data.request import ClipRequest


@dataclass(frozen=True)
class Part:
    """Requests of one shape whose pixels go into the pool's memory from ``offset`` on."""

    number: int
    generation: int  # parts of an older one than the pool's were taken back
    offset: int
    requests: list[ClipRequest]


@dataclass(frozen=True)
class Answer:
    """What became of a part: everything about each clip but its pixels."""

    number: int
    clips: list[ClipFacts]
    seconds: float  # that the worker took
    error: str = ""
    too_many_bad: bool = False  # the error is that no readable video was found


def hang_seconds(dataset: ClipDataset, index: int) -> float:
    """How long a decode of that video may take before it counts as hung, inside a library.

    Half as long again as the dataset's own limit, which is checked between packets; and what a
    store may take that is slow to answer.
    """
    is_local = dataset.manifest.locate(dataset.manifest.videos[index]).is_local
    return 1.5 * dataset.limit_seconds + (0.0 if is_local else FETCH_SECONDS)


def decode_part(
    dataset: ClipDataset,
    part: Part,
    memory: Tensor,
    *,
    is_current: Callable[[Part], bool],
    note: Callable[[int], None],
    bad_indices: Mapping[int, str] = MappingProxyType({}),
    within: AbstractContextManager[None] = nullcontext(),
) -> Answer:
    """Decode a part into the memory, clip by clip as long as the part ``is_current``.

    ``note`` is told the index of each video before it is tried. ``bad_indices`` are videos that
    hung or killed a worker, with what they did. ``within`` surrounds the decoding.
    Nothing is raised: errors are in the answer, and the loader raises them.
    """
    started = time.monotonic()
    clips, error, too_many_bad = [], "", False
    offset = part.offset
    try:
        with within:
            for request in part.requests:
                if not is_current(part):
                    break
                out = memory[offset : offset + request.num_bytes].view(request.clip_shape)
                offset += request.num_bytes
                clip = dataset.read(request, out=out, bad_indices=bad_indices, note=note)
                clips.append(clip.facts)
    except TooManyBadVideos as exhausted:
        error, too_many_bad = str(exhausted), True
    except Exception:
        error = traceback.format_exc()
    return Answer(part.number, clips, time.monotonic() - started, error, too_many_bad)
