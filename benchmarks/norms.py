"""Time what sub-batch norm costs beside plain batch norm, on a CPU.

    python benchmarks/norms.py > docs/results/norms.json

Prints JSON: ``norm_layers`` and ``norm_models``, the seconds of a forward and a backward pass with
``SubBatchNorm3d`` and with ``nn.BatchNorm3d``, the best of several interleaved ones of each.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from study_provenance import processor
from vcycle.models import SubBatchNorm3d, build_model, convert_batch_norm, set_norm_group
from vcycle.schedule.shape import Shape

GROUP_CLIPS = 8
LAYERS = (
    *((16, 8, 32, 32), (32, 8, 16, 16), (64, 8, 28, 28), (256, 4, 14, 14), (512, 4, 7, 7)),
    (512, 2, 4, 4),
)
"""Channels, frames, height and width of the norm layers that are timed, at 32 clips."""
FORMATS = {"contiguous": torch.contiguous_format, "channels_last_3d": torch.channels_last_3d}


def best_seconds(
    functions: Mapping[str, Callable[[], object]], *, repeats: int
) -> dict[str, float]:
    """The fastest of ``repeats`` runs of each, taken in turn so that all see the same machine."""
    best = dict.fromkeys(functions, float("inf"))
    for i in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if i:  # the first is for warming up
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def train_step(model: nn.Module, clips: Tensor) -> None:
    """A forward and a backward pass."""
    model(clips).logsumexp(1).sum().backward()


def compared(
    plain: Callable[[], object], sub_batch: Callable[[], object], *, repeats: int
) -> dict[str, float]:
    """Seconds of both kinds of norm, and the ratio."""
    seconds = best_seconds({"plain": plain, "sub_batch": sub_batch}, repeats=repeats)
    return seconds | {"ratio": seconds["sub_batch"] / seconds["plain"]}


def time_norm_layers(repeats: int) -> list[dict[str, Any]]:
    """One norm layer alone, at 32 clips in groups of 8."""
    rows = []
    for dims in LAYERS:
        for memory, memory_format in FORMATS.items():
            clips = torch.randn((32, *dims)).contiguous(memory_format=memory_format)
            plain, sub = nn.BatchNorm3d(dims[0]), SubBatchNorm3d(dims[0])
            sub.norm_group = GROUP_CLIPS
            gradient = torch.randn_like(clips)
            clips.requires_grad_()

            def run(layer: nn.Module, clips: Tensor = clips, gradient: Tensor = gradient) -> None:
                torch.autograd.grad(layer(clips), (clips, *layer.parameters()), gradient)

            result = compared(partial(run, plain), partial(run, sub), repeats=5 * repeats)
            rows.append({"shape": [32, *dims], "memory": memory, **result})
    return rows


def time_norm_models(repeats: int) -> list[dict[str, Any]]:
    """A whole model with either norm, at 16 clips in groups of 8."""
    rows = []
    for name, text in (("resnet3d_tiny", "8x64x64"), ("slow_r50", "4x64x64")):
        for memory, memory_format in FORMATS.items():
            shape = Shape.parse(text)
            plain = build_model(name, num_classes=400)
            plain.to(memory_format=memory_format)  # type: ignore[call-overload]
            sub = convert_batch_norm(copy.deepcopy(plain))
            set_norm_group(sub, GROUP_CLIPS)
            dims = (16, 3, shape.frames, shape.height, shape.width)
            clips = torch.randn(dims).contiguous(memory_format=memory_format)
            steps = [partial(train_step, model, clips) for model in (plain, sub)]
            result = compared(*steps, repeats=repeats)
            rows.append({"model": name, "shape": text, "memory": memory, **result})
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    repeats = parser.parse_args().repeats
    torch.manual_seed(0)
    result = {
        "torch": torch.__version__,
        "device": processor(),
        "precision": "float32",
        "threads": torch.get_num_threads(),
        "norm_layers": time_norm_layers(repeats),
        "norm_models": time_norm_models(repeats),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
