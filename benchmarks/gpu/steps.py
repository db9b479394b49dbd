"""Time every mini-batch of a plan on a GPU: each shape, batch size and norm group.

    python benchmarks/gpu/steps.py --recipe k400-slowfast-r50 --gpus 8 >> steps.jsonl
    python benchmarks/gpu/steps.py --recipe k400-slowfast-r50 --gpus 8 --skip 4 >> steps.jsonl

In: a recipe, and how many GPUs share its batches; one GPU does the share of one. Out: a JSON line
for each mini-batch and kind of norm, written when it is measured, so that a run may be cut short
and go on with ``--skip``. The rows are those of ``vcycle bench step``, with what they were measured
on. A norm group that spans GPUs is timed as one group of all clips.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

from vcycle.bench.step import StepBench, clips_of, step_kinds
from vcycle.config.recipes import recipe

PRECISIONS = ("32-true", "tf32", "bf16-mixed")
CLASSES = 400


def rows(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each mini-batch of the plan and each kind of norm, cheapest clips first."""
    config = recipe(arguments.recipe)
    config = replace(config, precision=arguments.precision, compile=arguments.compile)
    bench = StepBench(config, num_classes=CLASSES)
    todo = [(kind, norms) for kind in step_kinds(config.plan()) for norms in arguments.norms]
    on_gpu = bench.device.type == "cuda"
    for number, (kind, norms) in enumerate(todo):
        if number < arguments.skip:
            continue
        if norms == "whole":
            kind = replace(kind, norm_group=None)
        gpus, most = arguments.gpus, arguments.max_clips
        clips = clips_of(kind, bench.device, num_devices=gpus, max_clips=most)
        row = bench.row(kind, clips, num_devices=gpus, repeats=arguments.repeats)
        yield {
            "number": number,
            "recipe": arguments.recipe,
            "model": config.model.name,
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "torch": torch.__version__,
            "precision": arguments.precision,
            "compiled": arguments.compile,
            "norms": norms,
            "steps": kind.steps,
            **asdict(row),
        }


def main() -> None:
    """Measure and print, until the plan or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="k400-slowfast-r50")
    parser.add_argument("--gpus", type=int, default=8, help="that share a batch; one is timed")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16-mixed")
    parser.add_argument("--norms", nargs="+", choices=["grouped", "whole"], default=["grouped"])
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--max-clips", type=int, help="at most so many clips at a time")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no row begins")
    parser.add_argument("--skip", type=int, default=0, help="rows that were measured before")
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    began = time.monotonic()
    for row in rows(arguments):
        print(json.dumps(row), flush=True)
        if time.monotonic() - began > 60 * arguments.minutes:
            break


if __name__ == "__main__":
    main()
