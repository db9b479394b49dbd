"""``vcycle bench step``: what a plan's steps take on this machine, and so the run.

In: a recipe and flags, as for ``vcycle plan``. Out: a row for each shape, batch and norm group, the
file that ``vcycle plan --step-seconds`` reads, and predicted wall-clock beside the paper's.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from vcycle.bench.paper_speedups import paper_speedup
from vcycle.cli.launched import is_one_of_several
from vcycle.cli.own_weights import use_model_of_weights
from vcycle.cli.precision import in_fastest_precision, is_left_to_machine
from vcycle.config.fields import check_own_code
from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_config_flags
from vcycle.config.from_flags import run_config
from vcycle.config.recipes import USER_RECIPES
from vcycle.config.run import RunConfig
from vcycle.config.schedule_choice import most_clips
from vcycle.data.atomic import check_output, write_atomic
from vcycle.data.manifest import Manifest
from vcycle.schedule import cost
from vcycle.schedule.messages import duration
from vcycle.schedule.shape import clip_name

if TYPE_CHECKING:
    from vcycle.bench.step import StepRow

_KINETICS_CLASSES = 400
"""Of a network that is timed without videos."""
_FACTORS_FLAG = "--multigrid.long_cycle.batch_factors"
_HEADING = ("shape", "clips", "group", "forward", "backward", "optim.", "step", "host", "memory")
_WIDTHS = (15, 7, 6, 9, 9, 8, 9, 9, 9)


def add_bench_step_flags(parser: FlagParser) -> None:
    """Add the flags of every run, and how to measure."""
    add_config_flags(parser)
    parser.add_argument(
        "--out", default="steps.json", metavar="FILE", help="of the rows; else steps.json"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--max-clips",
        type=int,
        help="of a step; else all on a GPU, and on a CPU those of two million pixels",
    )
    parser.add_argument(
        "--num-devices", type=int, default=1, help="that share a batch; one is timed; else 1"
    )
    parser.add_argument("--repeats", type=int, default=5, help="steps of each row, at most; else 5")
    parser.add_argument(
        "--batches", action="store_true", help="time other batches too, and say which to take"
    )
    parser.set_defaults(run=run_bench_step)


def _check_out(file: Path) -> None:
    """Raise ValueError unless it can be written, at most in place of one that this wrote."""
    check_output(file, ".json", flag="--out")
    if file.exists():
        try:
            cost.measured_steps(json.loads(file.read_text()))
        except ValueError:
            raise ValueError(
                f"--out {file}: it is there, and no file of vcycle bench step; name another"
            ) from None


def run_bench_step(options: argparse.Namespace) -> None:
    """Measure, write the rows, and say how long the run would take."""
    if is_one_of_several():
        raise ValueError("bench step: it runs in one process; start it without torchrun")
    use_model_of_weights(options)
    config = run_config(options)
    if options.config is not None:
        check_own_code(config, options.fields, Path(options.config))
    plan = config.plan()  # a mistake in it is refused before torch is imported

    file = Path(options.out)
    _check_out(file)
    if is_left_to_machine(options):
        config = in_fastest_precision(config, is_timed=False)

    from vcycle.bench.batches import batch_factors, check_batches
    from vcycle.bench.step import StepBench, bench_steps

    if options.batches:
        check_batches(plan, options.num_devices)
    manifest = config.data.manifest
    if not options.json:
        print("".join(_cells(_HEADING)), "in ms and GiB", flush=True)
    classes = Manifest.read(manifest).num_classes if manifest else _KINETICS_CLASSES
    bench = StepBench(config, num_classes=classes)
    measured: list[StepRow] = []
    what = {
        "model": config.model.network,
        "precision": config.precision,
        "device": bench.device_name,
    }

    def text() -> str:
        return json.dumps([{**what, **asdict(row)} for row in _distinct(measured)], indent=1)

    def keep(row: StepRow) -> None:
        """Each row is written as it comes: an interrupt loses none."""
        measured.append(row)
        write_atomic(file, text() + "\n")
        if not options.json:
            _show(row)

    asked = {
        "num_devices": options.num_devices,
        "max_clips": options.max_clips,
        "repeats": options.repeats,
        "progress": keep,
    }
    bench_steps(bench, plan, **asked)
    factors: tuple[int, ...] = ()
    if options.batches:
        own = config.recipe in USER_RECIPES
        most = most_clips(config.baseline.num_videos) if own else None
        factors = batch_factors(bench, plan, most_batch=most, **asked)
    rows = _distinct(measured)
    proposal = f"batches by throughput: {_FACTORS_FLAG} '{list(factors)}'"
    if options.json:
        print(text())
        if factors:
            print(proposal, file=sys.stderr)
    else:
        print(f"\n{prediction_text(config, rows)}\n")
        if factors:
            print(f"{proposal}\n")
        given = (flag.split(" ", 1) for flag in (*options.given, f"--step-seconds {options.out}"))
        words = [*filter(None, ["vcycle", "plan", options.recipe]), *(w for f in given for w in f)]
        print(shlex.join(words))


def _distinct(rows: Sequence[StepRow]) -> list[StepRow]:
    """The first row of each step, as a plan takes no step twice."""
    kinds: dict[object, StepRow] = {}
    for row in rows:
        kinds.setdefault((row.shape, row.clips, row.norm_group, row.token_share), row)
    return list(kinds.values())


def prediction_text(config: RunConfig, rows: Sequence[StepRow]) -> str:
    """What the run and its baseline would take by these rows, and what the paper measured."""
    predicted = cost.seconds(config.plan(), cost.measured_steps([asdict(row) for row in rows]))
    lines = [
        f"predicted: {duration(predicted.plan)} for the plan, {duration(predicted.baseline)} for "
        f"its baseline, {_times(predicted.reduction)}"
    ]
    published = paper_speedup(config)
    if published is not None:
        lines.append(f"the paper: {published:g}x less, at the recipe's own sizes on its GPUs")
    limited = sum(row.clips < row.batch_size for row in rows)
    if limited:
        lines.append(
            f"{limited} of {len(rows)} rows have fewer clips than the plan's step: in proportion, "
            f"and so too much of the optimizer, whose time is the same for any number"
        )
    return "\n".join(lines)


def _times(reduction: float) -> str:
    return f"{reduction:.2f}x less" if reduction >= 1 else f"{1 / reduction:.2f}x as much"


def _show(row: StepRow) -> None:
    times = (row.forward_seconds, row.backward_seconds, row.optimizer_seconds)
    cells = (
        clip_name(row.shape, row.token_share),
        f"{row.clips:,}",
        "-" if row.norm_group is None else str(row.norm_group),
        *(f"{1000 * seconds:.1f}" for seconds in (*times, row.seconds, row.host_seconds)),
        "-" if row.bytes is None else f"{row.bytes / 2**30:.2f}",
    )
    print("".join(_cells(cells)), flush=True)


def _cells(cells: Sequence[str]) -> list[str]:
    first, *others = zip(cells, _WIDTHS, strict=True)
    return [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
