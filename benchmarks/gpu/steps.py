"""Time every mini-batch of the paper's plans on a GPU: each shape, batch size and norm group.

    python benchmarks/gpu/steps.py steps.jsonl --recipes k400-slowfast-r50 k400-i3d-r50
    python benchmarks/gpu/steps.py steps.jsonl --recipes k400-slowfast-r50 --precision tf32 32-true

In: recipes, and how many clips of the full shape one GPU takes; it takes the share of every batch
that follows. Out: a JSON line for each kind of step in the file, written when it is measured: cut
short, the same command goes on, and what recipes share is measured once. Rows are those of
``vcycle bench step``, but ``clips`` are those of the one GPU.

Norms are ``grouped`` as the plan says, or ``plain``, those of ``nn.BatchNorm3d``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from vcycle.bench.step import StepBench, clips_of, norm_group_of, step_kinds
from vcycle.config.recipes import recipe
from vcycle.config.run import RunConfig
from vcycle.models import SubBatchNorm3d
from vcycle.schedule.plan import MiniBatch

PRECISIONS = ("32-true", "tf32", "bf16-mixed")
CLASSES = 400
_KEYS = ("model", "options", "precision", "compiled", "cuda_graphs", "kernels_tried", "norms")
_KIND = ("shape", "clips", "norm_group", "token_share")


def benches(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], RunConfig]]:
    """What is measured, in its order, and its configuration."""
    for precision in options.precision:
        for name in options.recipes:
            config = replace(
                recipe(name),
                precision=precision,
                compile=options.compile,
                cuda_graphs="off" if options.eager else "auto",
            )
            for norms in options.norms:
                on_gpu = torch.cuda.is_available()
                graphs, kernels = on_gpu and not options.eager, options.kernels if on_gpu else None
                values = (config.model.name, config.model.options, precision, options.compile)
                yield dict(zip(_KEYS, (*values, graphs, kernels, norms), strict=True)), config


def rows(options: argparse.Namespace, known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row for each kind of step that is not ``known``, cheapest clips first."""
    seen = [_key(row, options) for row in known]
    for about, config in benches(options):
        plan, bench = config.plan(), None
        devices = max(1, plan.baseline.batch_size // options.clips)
        for kind in step_kinds(plan):
            if about["norms"] == "plain":
                kind = replace(kind, norm_group=None)
            clips = _clips(kind, devices, options)
            group = norm_group_of(kind, clips)
            shape, share = str(kind.shape), kind.token_share
            row_keys = {**about, **dict(zip(_KIND, (shape, clips, group, share), strict=True))}
            key = _key(row_keys, options)
            if key in seen or shape not in (options.shapes or [shape]):
                continue
            bench = bench or _bench(config, about)
            row = bench.row(kind, clips, num_devices=1, repeats=options.repeats)
            seen += [key, _key({**about, **asdict(row)}, options)]
            yield {**about, "device": _device(), "torch": torch.__version__, **asdict(row)}


def _clips(kind: MiniBatch, devices: int, options: argparse.Namespace) -> int:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return clips_of(kind, device, num_devices=devices, max_clips=options.max_clips)


def _bench(config: RunConfig, about: dict[str, Any]) -> StepBench:
    bench = StepBench(config, num_classes=CLASSES)
    if about["kernels_tried"] is not None:
        torch.backends.cudnn.benchmark_limit = about["kernels_tried"]
    for layer in bench.network.modules():
        if about["norms"] == "plain" and isinstance(layer, SubBatchNorm3d):
            layer._pending = None  # statistics that are not deferred are those of torch's kernel
    return bench


def _key(row: dict[str, Any], options: argparse.Namespace) -> tuple[Any, ...]:
    """What makes a row another one than those that are known."""
    names = [*_KEYS, *_KIND]
    if options.any_group:
        names.remove("norm_group")
    return tuple(str(row.get(name)) for name in names)


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Measure and write, until all is measured or the time is over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="gets a line a row; those in it are not repeated")
    parser.add_argument("--recipes", nargs="+", default=["k400-slowfast-r50"])
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=["bf16-mixed"])
    parser.add_argument("--norms", nargs="+", choices=["grouped", "plain"], default=["grouped"])
    parser.add_argument("--clips", type=int, default=8, help="of the full shape, on this GPU")
    parser.add_argument("--compile", action="store_true", help="with torch.compile")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs")
    parser.add_argument("--kernels", type=int, default=10, help="of each convolution to be tried")
    parser.add_argument("--shapes", nargs="+", help="only these, such as 32x224x224")
    parser.add_argument("--any-group", action="store_true", help="one norm group of each batch")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-clips", type=int, help="at most so many clips at a time")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which no row begins")
    options = parser.parse_args()
    plans = [config.plan() for _, config in benches(options)]
    shapes = {str(kind.shape) for plan in plans for kind in step_kinds(plan)}
    if unknown := sorted(set(options.shapes or ()) - shapes):
        parser.error(f"--shapes {' '.join(unknown)}: choose from {' '.join(sorted(shapes))}")
    began = time.monotonic()
    known = [json.loads(line) for line in _lines(options.out)]
    for row in rows(options, known):
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)
        if time.monotonic() - began > 60 * options.minutes:
            break


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    main()
