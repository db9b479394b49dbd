"""Time every mini-batch of the paper's plans on a GPU: each shape, batch size and norm group.

    python benchmarks/gpu/steps.py steps.jsonl --recipes k400-slowfast-r50 k400-i3d-r50
    python benchmarks/gpu/steps.py steps.jsonl --recipes k400-slowfast-r50 --precision tf32 32-true

In: recipes, and how many clips of the full shape one GPU takes; it takes the share of every batch
that follows. Out: a JSON line for each kind of step in the file, written when it is measured: cut
short, the same command goes on, and what recipes share is measured once. Rows are those of
``vcycle bench step``, but ``clips`` are those of the one GPU. ``--jobs 8`` compiles eight kinds at
a time, a process each, and times them in turn when all are compiled.

Norms are ``grouped`` as the plan says, or ``plain``, those of ``nn.BatchNorm3d``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing.synchronize import Barrier, Lock
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
_LONGEST = 1800
"""Seconds at most until all kinds of a lot are compiled."""
_KEYS = ("model", "options", "precision", "compiled", "cuda_graphs", "kernels_tried", "norms")
_KIND = ("shape", "clips", "norm_group", "token_share")


@dataclass(frozen=True)
class Timing:
    """Something to be timed: a kind of step of a configuration, and the clips of the one GPU.

    Args:
        about: what its row says of it beside the figures.
    """

    about: dict[str, Any]
    config: RunConfig
    kind: MiniBatch
    clips: int


def configurations(options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], RunConfig]]:
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


def timings(options: argparse.Namespace, known: list[dict[str, Any]]) -> Iterator[Timing]:
    """Each kind of step that no row of ``known`` has, which may grow, cheapest clips first."""
    seen: list[tuple[Any, ...]] = []
    for about, config in configurations(options):
        plan = config.plan()
        devices = max(1, plan.baseline.batch_size // options.clips)
        for kind in step_kinds(plan):
            if about["norms"] == "plain":
                kind = replace(kind, norm_group=None)
            clips = _clips(kind, devices, options)
            group = norm_group_of(kind, clips)
            shape, share = str(kind.shape), kind.token_share
            row_keys = {**about, **dict(zip(_KIND, (shape, clips, group, share), strict=True))}
            key = _key(row_keys, options)
            if key in seen or key in [_key(row, options) for row in known]:
                continue
            if shape in (options.shapes or [shape]):
                seen.append(key)
                yield Timing(about, config, kind, clips)


def time_in_turn(options: argparse.Namespace, known: list[dict[str, Any]], end: float) -> None:
    """Time what is left, one after the other, and write a row of each."""
    about, bench = None, None
    for timing in timings(options, known):
        if bench is None or about is not timing.about:
            about, bench = timing.about, _bench(timing.config, timing.about)
        known.append(_write(timing, bench, options))
        if time.monotonic() > end:
            break


def time_in_lots(options: argparse.Namespace, known: list[dict[str, Any]], end: float) -> None:
    """Time what is left, so many at a time; a lot is compiled all at once, and then timed in turn.

    A kind of step takes minutes of one core to compile; what else the machine does then must not
    disturb what is timed.
    """
    context = multiprocessing.get_context("spawn")
    left = list(timings(options, known))
    for first in range(0, len(left), options.jobs):
        lot = left[first : first + options.jobs]
        ready, turn = context.Barrier(len(lot), timeout=_LONGEST), context.Lock()
        processes = [
            context.Process(target=_time_one, args=(timing, options, ready, turn)) for timing in lot
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if failed := sum(process.exitcode != 0 for process in processes):
            raise SystemExit(f"{failed} of {len(lot)} kinds failed")
        if time.monotonic() > end:
            break


def _time_one(timing: Timing, options: argparse.Namespace, ready: Barrier, turn: Lock) -> None:
    """Compile a kind of step, wait until the others of the lot have, and time it in its turn."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # each process has one core
    torch.set_num_threads(1)
    cudnn, waits_until = torch.backends.cudnn, time.monotonic() + _LONGEST
    try:
        bench = _bench(replace(timing.config, cuda_graphs="off"), timing.about)
        chosen = cudnn.benchmark, cudnn.deterministic
        # Kernels that are chosen beside other work are kept apart from those that are timed.
        cudnn.benchmark, cudnn.deterministic = False, True
        while (
            bench.row_if_it_fits(timing.kind, timing.clips, num_devices=1, repeats=1) is None
            and time.monotonic() < waits_until
        ):
            time.sleep(2)  # until the others' memory is free
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
    finally:
        ready.wait()
    cudnn.benchmark, cudnn.deterministic = chosen
    bench._config = timing.config
    with turn:
        _write(timing, bench, options)
        if bench.device.type == "cuda":
            bench._recorder = None
            torch.cuda.empty_cache()


def _write(timing: Timing, bench: StepBench, options: argparse.Namespace) -> dict[str, Any]:
    """Time, print and write a row, and return it."""
    measured = bench.row(timing.kind, timing.clips, num_devices=1, repeats=options.repeats)
    about = {**timing.about, "device": _device(), "torch": torch.__version__}
    row = {**about, **asdict(measured)}
    with options.out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)
    return row


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
    parser.add_argument("--jobs", type=int, default=1, help="kinds that are compiled at a time")
    parser.add_argument("--minutes", type=float, default=9.0, help="after which none begins")
    options = parser.parse_args()
    plans = [config.plan() for _, config in configurations(options)]
    shapes = {str(kind.shape) for plan in plans for kind in step_kinds(plan)}
    if unknown := sorted(set(options.shapes or ()) - shapes):
        parser.error(f"--shapes {' '.join(unknown)}: choose from {' '.join(sorted(shapes))}")
    known = [json.loads(line) for line in _lines(options.out)]
    end = time.monotonic() + 60 * options.minutes
    (time_in_turn if options.jobs == 1 else time_in_lots)(options, known, end)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    main()
