"""Time every mini-batch of a plan on a GPU: each shape, batch size and norm group.

    python benchmarks/gpu/steps.py --recipe k400-slowfast-r50 --gpus 8 >> steps.jsonl
    python benchmarks/gpu/steps.py --recipe k400-slowfast-r50 --gpus 8 --skip 4 >> steps.jsonl

In: a recipe, and how many GPUs share its batches; one GPU does the share of one. Out: a JSON line
for each mini-batch and kind of norm, written when it is measured, so that a run may be cut short
and go on with ``--skip``. Seconds are medians: of the forward pass, the backward pass, the update
(statistics and optimizer) and the whole step by the device's clock, and of the host until all is
launched. ``peak_bytes`` is the most memory that was held; a batch that does not fit has
``out_of_memory``. A norm group that spans GPUs is timed as one group of all clips. Clips are random
and on the device: nothing is decoded or copied.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from vcycle.config.recipes import recipe
from vcycle.config.run import RunConfig
from vcycle.models import (
    build_model,
    commit_statistics,
    convert_batch_norm,
    convert_dropout,
    defer_statistics,
    set_norm_group,
)
from vcycle.schedule.plan import MiniBatch
from vcycle.train.compiling import compile_blocks

PRECISIONS = ("float32", "tf32", "bfloat16")
CLASSES = 400


class Clock:
    """Moments in the stream of a device, or of the CPU, and the seconds between them."""

    def __init__(self, device: str) -> None:
        self.is_gpu = device == "cuda"

    def now(self) -> Any:
        """A moment: when the device gets to it."""
        if not self.is_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """From one to the other; waits for the device."""
        if not self.is_gpu:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


def make_model(config: RunConfig, *, norms: str, device: str) -> nn.Module:
    """The recipe's model with plain or with sub-batch norm."""
    model = build_model(config.model.name, num_classes=CLASSES, **config.model.options)
    convert_dropout(model)
    if norms == "grouped":
        convert_batch_norm(model)
        defer_statistics(model)
    return model.to(device, memory_format=torch.channels_last_3d)  # type: ignore[call-overload, no-any-return]


def make_step(
    model: nn.Module, batch: MiniBatch, clips: int, *, precision: str, device: str
) -> Callable[[], dict[str, float]]:
    """A training step that returns its times."""
    clock, dims = Clock(device), (batch.shape.frames, batch.shape.height, batch.shape.width)
    images = torch.randn((clips, 3, *dims), device=device)
    images = images.contiguous(memory_format=torch.channels_last_3d)
    labels = torch.arange(clips, device=device) % CLASSES
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-3, momentum=0.9, fused=device == "cuda" or None
    )
    norm_group = batch.norm_group
    set_norm_group(model, norm_group if norm_group and clips % norm_group == 0 else None)

    def step() -> dict[str, float]:
        began, marks = time.perf_counter(), [clock.now()]
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            loss = F.cross_entropy(model(images), labels)
        marks.append(clock.now())
        loss.backward()  # type: ignore[no-untyped-call]
        marks.append(clock.now())
        commit_statistics(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        marks.append(clock.now())
        host = time.perf_counter() - began
        names = ("forward_seconds", "backward_seconds", "update_seconds")
        pairs = zip(names, marks, marks[1:], strict=False)
        times = {name: clock.seconds(start, end) for name, start, end in pairs}
        return {**times, "step_seconds": clock.seconds(marks[0], marks[-1]), "host_seconds": host}

    return step


def measure(step: Callable[[], dict[str, float]], *, device: str, repeats: int) -> dict[str, Any]:
    """Medians of several steps, after two that choose and compile kernels."""
    for _ in range(2):
        step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = [step() for _ in range(repeats)]
    medians: dict[str, Any] = {name: median(each[name] for each in times) for name in times[0]}
    return {
        **medians,
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }


def rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each mini-batch of the plan and each kind of norm, cheapest clips first."""
    config, device = recipe(arguments.recipe), arguments.device
    todo = [(batch, norms) for batch in config.plan().mini_batches() for norms in arguments.norms]
    for number, (batch, norms) in enumerate(todo):
        if number < arguments.skip:
            continue
        clips = max(1, batch.batch_size // arguments.gpus)
        clips = min(clips, arguments.max_clips or clips)
        row = {
            "number": number,
            "recipe": arguments.recipe,
            "model": config.model.name,
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "torch": torch.__version__,
            "precision": arguments.precision,
            "norms": norms,
            "compiled": arguments.compile,
            "shape": str(batch.shape),
            "batch_size": batch.batch_size,
            "clips": clips,
            "norm_group": batch.norm_group,
            "steps": batch.steps,
        }
        torch.manual_seed(0)
        model = make_model(config, norms=norms, device=device)
        if arguments.compile:
            compile_blocks(model, num_kinds=1)
        try:
            step = make_step(model, batch, clips, precision=arguments.precision, device=device)
            row |= measure(step, device=device, repeats=arguments.repeats)
        except torch.OutOfMemoryError:
            row["out_of_memory"] = True
        yield row
        del model
        if device == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    """Measure and print, until the plan or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="k400-slowfast-r50")
    parser.add_argument("--gpus", type=int, default=8, help="that share a batch; one is timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="bfloat16")
    parser.add_argument("--compile", action="store_true", help="the model's blocks")
    parser.add_argument("--norms", nargs="+", choices=["grouped", "plain"], default=["grouped"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--max-clips", type=int, help="at most so many clips at a time")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no row begins")
    parser.add_argument("--skip", type=int, default=0, help="rows that were measured before")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = arguments.precision != "float32"
    torch.backends.cudnn.allow_tf32 = arguments.precision != "float32"
    began = time.monotonic()
    for row in rows(arguments):
        print(json.dumps(row), flush=True)
        if time.monotonic() - began > 60 * arguments.minutes:
            break


if __name__ == "__main__":
    main()
