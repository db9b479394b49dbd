"""Count the operations of a SlowFast training step, with plain and with sub-batch norm.

    python benchmarks/gpu/launches.py

In: nothing; model and clips are on the meta device, which computes shapes only and takes the same
path as a GPU. Out: ``plain``, ``grouped`` and their ``ratio``, at 128 clips of 8x112x112 with norm
groups of 8, for a forward pass, a backward pass and the commit of the running statistics.

It counts operations of torch's dispatcher; each launches one kernel on a GPU, or a few. Views and
allocations launch none and are left out of both counts. The operations of sub-batch norm launch one
kernel each (``vcycle.models.norm_triton``).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from vcycle.models import (
    build_model,
    commit_statistics,
    convert_batch_norm,
    defer_statistics,
    set_norm_group,
)
from vcycle.schedule.shape import Shape

MODEL, SHAPE, CLIPS, NORM_GROUP = "slowfast_r50", Shape(8, 112, 112), 128, 8


class Operations(TorchDispatchMode):
    """Counts by name the operations that are neither views nor allocations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        returns = function._schema.returns
        is_view = any(each.alias_info and not each.alias_info.is_write for each in returns)
        if not is_view and not function.__name__.startswith(("empty", "new_empty")):
            self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def count(norm_group: int | None) -> Counter[str]:
    """Operations of one training step by name; None: with plain norms."""
    with torch.device("meta"):
        model = build_model(MODEL, num_classes=400)
        if norm_group is not None:
            convert_batch_norm(model)
            set_norm_group(model, norm_group)
            defer_statistics(model)
        model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        clips = torch.empty(CLIPS, 3, SHAPE.frames, SHAPE.height, SHAPE.width)
        clips = clips.contiguous(memory_format=torch.channels_last_3d)
        labels = torch.empty(CLIPS, dtype=torch.long)
    with Operations() as operations:
        F.cross_entropy(model(clips), labels).backward()  # type: ignore[no-untyped-call]
        commit_statistics(model)
    counts: Counter[str] = operations.counts
    return counts


def main() -> None:
    """Count and print."""
    plain, grouped = count(None), count(NORM_GROUP)
    result = {
        "model": MODEL,
        "shape": str(SHAPE),
        "clips": CLIPS,
        "norm_group": NORM_GROUP,
        "plain": plain.total(),
        "grouped": grouped.total(),
        "ratio": grouped.total() / plain.total(),
        "of_sub_batch_norm": {k: n for k, n in grouped.items() if k.startswith("vcycle.")},
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
