"""Time and memory of every model, and what sub-batch norm costs beside plain batch norm.

    python benchmarks/models.py                    # float32 on the CPU, small shapes
    python benchmarks/models.py --device cuda      # bfloat16 autocast, the paper's shapes

Prints JSON. ``models``: seconds of a forward and backward pass, and memory. Memory is the peak on a
GPU; on a CPU it is what the forward pass keeps for the backward pass, which is the same on every
machine. ``norm_layers`` and ``norm_models``: the best of several interleaved runs of
``SubBatchNorm3d`` and ``nn.BatchNorm3d``.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vcycle.models import SubBatchNorm3d, build_model, convert_batch_norm, set_norm_group
from vcycle.models.count import multiply_adds, num_parameters
from vcycle.schedule.shape import Shape

NAMES = ("resnet3d_tiny", "c2d_r50", "slow_r50", "i3d_r50", "i3d_nl_r50", "slowfast_r50")
SHAPES = {
    "cpu": ("4x64x64", "8x64x64"),
    "cuda": ("8x158x158", "16x224x224", "32x224x224"),
}
GROUP_CLIPS = 8
LAYERS = (
    *((16, 8, 32, 32), (32, 8, 16, 16), (64, 8, 28, 28), (256, 4, 14, 14), (512, 4, 7, 7)),
    (512, 2, 4, 4),
)
"""Channels, frames, height and width of the norm layers that are timed, at 32 clips."""
FORMATS = {"contiguous": torch.contiguous_format, "channels_last_3d": torch.channels_last_3d}


def processor() -> str:
    """The name of the CPU."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def best_seconds(
    functions: Mapping[str, Callable[[], object]], *, device: str, repeats: int
) -> dict[str, float]:
    """The fastest of ``repeats`` runs of each, taken in turn so that all see the same machine."""
    best = dict.fromkeys(functions, float("inf"))
    for i in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if device == "cuda":
                torch.cuda.synchronize()
            if i:  # the first is for warming up
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def autocast(device: str) -> AbstractContextManager[Any]:
    """Bfloat16 on a GPU, float32 on a CPU."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if device == "cuda" else nullcontext()


def train_step(model: nn.Module, clips: Tensor, device: str) -> Callable[[], None]:
    """A forward and a backward pass."""

    def step() -> None:
        with autocast(device):
            scores = model(clips)
        scores.float().logsumexp(1).sum().backward()

    return step


def memory_bytes(model: nn.Module, clips: Tensor, device: str) -> int:
    """Peak of one step on a GPU; on a CPU what autograd keeps, parameters not counted."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        train_step(model, clips, device)()
        return torch.cuda.max_memory_allocated()
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = model(clips)
    del scores
    return sum(kept.values())


def time_models(
    device: str, names: list[str], num_clips: int, repeats: int
) -> list[dict[str, Any]]:
    """One row per model and shape."""
    rows = []
    for name in names:
        model = convert_batch_norm(build_model(name, num_classes=400)).to(device)
        model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        set_norm_group(model, num_clips // 2)
        for text in SHAPES[device]:
            shape = Shape.parse(text)
            clips = torch.randn(
                (num_clips, 3, shape.frames, shape.height, shape.width), device=device
            ).contiguous(memory_format=torch.channels_last_3d)
            step = {"step": train_step(model, clips, device)}
            seconds = best_seconds(step, device=device, repeats=repeats)["step"]
            macs = multiply_adds(model, shape)
            rows.append(
                {
                    "model": name,
                    "shape": text,
                    "clips": num_clips,
                    "parameters": num_parameters(model),
                    "multiply_adds_per_clip": macs,
                    "seconds": seconds,
                    "clips_per_second": num_clips / seconds,
                    "tera_multiply_adds_per_second": 3 * macs * num_clips / seconds / 1e12,
                    "memory_bytes": memory_bytes(model, clips, device),
                }
            )
    return rows


def compare(plain: nn.Module, sub: nn.Module, clips: Tensor, device: str, repeats: int) -> Any:
    """Seconds of both kinds of norm, and the ratio."""
    steps: dict[str, Callable[[], object]] = {
        "plain": train_step(plain, clips, device),
        "sub_batch": train_step(sub, clips, device),
    }
    seconds = best_seconds(steps, device=device, repeats=repeats)
    return seconds | {"ratio": seconds["sub_batch"] / seconds["plain"]}


def time_norm_layers(device: str, repeats: int) -> list[dict[str, Any]]:
    """One norm layer alone, at 32 clips in groups of 8."""
    rows = []
    for dims in LAYERS:
        for text, memory_format in FORMATS.items():
            clips = torch.randn((32, *dims), device=device).contiguous(memory_format=memory_format)
            plain = nn.BatchNorm3d(dims[0]).to(device)
            sub = SubBatchNorm3d(dims[0]).to(device)
            sub.norm_group = GROUP_CLIPS
            gradient = torch.randn_like(clips)
            clips.requires_grad_()

            def run(layer: nn.Module, clips: Tensor = clips, gradient: Tensor = gradient) -> None:
                torch.autograd.grad(layer(clips), (clips, *layer.parameters()), gradient)

            functions: dict[str, Callable[[], object]] = {
                "plain": lambda run=run, plain=plain: run(plain),  # type: ignore[misc]
                "sub_batch": lambda run=run, sub=sub: run(sub),  # type: ignore[misc]
            }
            seconds = best_seconds(functions, device=device, repeats=5 * repeats)
            ratio = seconds["sub_batch"] / seconds["plain"]
            rows.append({"shape": [32, *dims], "memory": text, **seconds, "ratio": ratio})
    return rows


def time_norm_models(device: str, repeats: int) -> list[dict[str, Any]]:
    """A whole model with either norm, at 16 clips in groups of 8."""
    rows = []
    for name, text in (("resnet3d_tiny", "8x64x64"), ("slow_r50", "4x64x64")):
        for memory, memory_format in FORMATS.items():
            shape = Shape.parse(text)
            plain = build_model(name, num_classes=400).to(device)
            plain.to(memory_format=memory_format)  # type: ignore[call-overload]
            sub = convert_batch_norm(copy.deepcopy(plain))
            set_norm_group(sub, GROUP_CLIPS)
            dims = (16, 3, shape.frames, shape.height, shape.width)
            clips = torch.randn(dims, device=device).contiguous(memory_format=memory_format)
            result = compare(plain, sub, clips, device, repeats)
            rows.append({"model": name, "shape": text, "memory": memory, **result})
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=SHAPES, default="cpu")
    parser.add_argument("--models", nargs="*", default=list(NAMES))
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device, repeats = arguments.device, arguments.repeats
    result = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "precision": "bfloat16 autocast" if device == "cuda" else "float32",
        "threads": torch.get_num_threads(),
        "models": time_models(device, arguments.models, arguments.clips, repeats),
        "norm_layers": time_norm_layers(device, repeats),
        "norm_models": time_norm_models(device, repeats),
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
