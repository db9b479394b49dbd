"""Check that a GPU computes what a CPU does: outputs, gradients, running statistics and losses.

    python benchmarks/gpu/equality.py                  # on the GPU, or on the CPU if there is none
    python benchmarks/gpu/equality.py --no-layers --models slowfast_r50_8x8 resnet3d_tiny

In: nothing. Out: a JSON line for every comparison, with its relative error (the norm of the
difference over that of the reference) and what is allowed; exit code 1 if any error is larger. The
reference is float64 on the CPU. Precisions are float32 without TF32 in any kernel, TF32 (GPUs
only), and bfloat16 autocast. Dropout is on: its masks do not depend on the device.

Gradients jump where a ReLU's input changes its sign, and norms of few values magnify what they are
given: a model may be as far from float64 as three times the CPU in the same precision, if that is
more than the bound. Where that comes to 1, the error of zeros, nothing is compared: ``equal`` is
null.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcycle.data.randomness import indexed_seeds
from vcycle.models import (
    SubBatchNorm3d,
    build_model,
    commit_statistics,
    convert_batch_norm,
    convert_convolutions,
    convert_dropout,
    defer_statistics,
    set_dropout_seeds,
    set_norm_group,
)
from vcycle.schedule.shape import Shape

ALLOWED = {"float32": 1e-5, "tf32": 1e-2, "bfloat16": 2e-2}
OF_GRADIENTS = {"float32": 1e-4, "tf32": 5e-2, "bfloat16": 0.2}
"""Of a model, whose layers add up the rounding of those behind them."""
LAYERS = ((64, 4, 28, 28), (8, 4, 28, 28), (512, 4, 7, 7), (33, 2, 5, 5))
"""Channels, frames, height and width of the norm layers, in batches of 16 clips."""
FORMATS = {"contiguous": torch.contiguous_format, "channels_last_3d": torch.channels_last_3d}
STEPS = ((Shape(4, 64, 64), 16, 4), (Shape(8, 64, 64), 8, 4), (Shape(8, 96, 96), 8, None))
"""Shape, batch size and norm group of the steps of a model."""


@contextmanager
def precision(name: str, device: str) -> Iterator[None]:
    """Compute in ``name``, of ``ALLOWED``."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
    try:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=name == "bfloat16"):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def relative_error(values: list[Tensor], correct: list[Tensor]) -> float:
    """Of all tensors as one: the norm of the difference over that of ``correct``."""
    pairs = [(a.detach(), b.detach()) for a, b in zip(values, correct, strict=True)]
    difference = sum(float((a.double().cpu() - b).square().sum()) for a, b in pairs)
    return float((difference / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5)


def of_layer(clips: Tensor, gradient: Tensor, norm_group: int) -> dict[str, list[Tensor]]:
    """Results of one norm layer on the device and in the precision of ``clips``."""
    torch.manual_seed(0)
    layer = SubBatchNorm3d(clips.shape[1])
    nn.init.uniform_(layer.weight, 0.5, 1.5)
    layer.to(clips.device)
    if clips.dtype == torch.float64:
        layer.double()
    set_norm_group(layer, norm_group)
    defer_statistics(layer)
    clips = clips.detach().requires_grad_()
    out = layer(clips)
    gradients = torch.autograd.grad(out, (clips, layer.weight, layer.bias), gradient)
    commit_statistics(layer)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return {
        "outputs": [out],
        "gradients": list(gradients),
        "statistics": [layer.running_mean, layer.running_var],
    }


def check_layers(device: str, precisions: list[str]) -> Iterator[dict[str, Any]]:
    """Norm layers alone, in both memory formats and groups of several sizes."""
    for dims in LAYERS:
        for memory, memory_format in FORMATS.items():
            torch.manual_seed(0)
            clips = (torch.randn(16, *dims) + 1).contiguous(memory_format=memory_format)
            gradient = torch.randn_like(clips)
            for name in precisions:
                dtype = torch.bfloat16 if name == "bfloat16" else torch.float32
                x, grad = clips.to(dtype), gradient.to(dtype)  # whose rounding is no error
                for group in (1, 4, 16):
                    correct = of_layer(x.double(), grad.double(), group)
                    with precision(name, device):
                        results = of_layer(x.to(device), grad.to(device), group)
                    what = f"norm of {[16, *dims]}, {memory}, groups of {group}"
                    for kind, values in results.items():
                        error = relative_error(values, correct[kind])
                        yield row(what, name, kind, error, ALLOWED[name])


def of_model(model: nn.Module, device: str, name: str | None) -> dict[str, list[Tensor]]:
    """Train a copy of ``model`` for ``STEPS``; None: in float64."""
    model = copy.deepcopy(model).to(device)
    model.to(torch.float64 if name is None else torch.float32)
    model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, first = [], {}
    for number, (shape, num_clips, group) in enumerate(STEPS):
        generator = torch.Generator().manual_seed(number)
        dims = (num_clips, 3, shape.frames, shape.height, shape.width)
        clips = torch.randn(dims, generator=generator).to(next(model.parameters()).dtype)
        clips = clips.to(device, memory_format=torch.channels_last_3d)
        labels = (torch.arange(num_clips) % 5).to(device)
        set_norm_group(model, group)
        set_dropout_seeds(model, indexed_seeds(number, "dropout", np.arange(num_clips)))
        with precision(name or "float32", device):
            scores = model(clips)
            loss = F.cross_entropy(scores, labels)
        with precision("tf32" if name == "tf32" else "float32", device):  # outside of autocast
            loss.backward()  # type: ignore[no-untyped-call]
        if number == 0:
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            first = {"outputs": [scores.detach()], "gradients": gradients}
        optimizer.step()
        optimizer.zero_grad()
        commit_statistics(model)
        losses.append(loss.detach())
    running = [b for key, b in model.named_buffers() if "running" in key]
    results = {**first, "losses": losses, "statistics": running}
    return {kind: values for kind, values in results.items() if values}  # some have no norms


def check_model(name: str, device: str, precisions: list[str]) -> Iterator[dict[str, Any]]:
    """A model over a few steps that change shape, batch size and norm group."""
    torch.manual_seed(0)
    model = convert_dropout(convert_batch_norm(build_model(name, num_classes=5)))
    convert_convolutions(model)  # as vcycle train does: a CPU's of short clips may be wrong
    for module in model.modules():
        if isinstance(module, nn.BatchNorm3d):  # not 0, so that every branch counts
            nn.init.uniform_(module.weight, 0.5, 1.0)
    defer_statistics(model)
    correct = of_model(model, "cpu", None)
    for each in precisions:
        # CPUs have no TF32; bfloat16 has fewer digits than that.
        on_cpu = of_model(model, "cpu", "bfloat16" if each == "tf32" else each)
        for kind, values in of_model(model, device, each).items():
            bound = (OF_GRADIENTS if kind == "gradients" else ALLOWED)[each]
            usual = relative_error(on_cpu[kind], correct[kind])
            error = relative_error(values, correct[kind])
            yield {**row(name, each, kind, error, max(bound, 3 * usual)), "cpu_error": usual}


def row(what: str, precision: str, kind: str, error: float, allowed: float) -> dict[str, Any]:
    """One comparison."""
    result = {"what": what, "precision": precision, "compared": kind, "error": error}
    return {**result, "allowed": allowed, "equal": error <= allowed if allowed < 1 else None}


def main() -> int:
    """Compare and print; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="*", default=["resnet3d_tiny"])
    parser.add_argument("--layers", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    device = arguments.device
    precisions = [name for name in ALLOWED if name != "tf32" or device == "cuda"]
    differs = False
    comparisons = [check_layers(device, precisions)] if arguments.layers else []
    comparisons += [check_model(name, device, precisions) for name in arguments.models]
    for each in comparisons:
        for result in each:
            print(json.dumps({"device": device, **result}), flush=True)
            differs |= result["equal"] is False
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
