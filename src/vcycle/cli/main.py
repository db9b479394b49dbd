"""The command line. Each command reads its arguments, calls one function, and prints.

What a user got wrong is one line on standard error and exit code 2; an interrupted command is exit
code 130. Commands import what they need when they run: printing a plan must not wait for torch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from vcycle.cli.data import add_data_flags
from vcycle.cli.eval import add_eval_flags
from vcycle.cli.plan import add_plan_flags, run_plan_command
from vcycle.cli.train import add_train_flags
from vcycle.config.flags import FIELDS_HELP, FlagParser
from vcycle.schedule.shape import Shape


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        parser = _parser()
        options, fields = parser.parse_known_args(arguments)
        if fields and not options.takes_fields:
            parser.error(f"unrecognized arguments: {' '.join(fields)}")
        options.run(options, fields)
        return 0
    except BrokenPipeError:  # whoever read the output, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        if os.environ.get("VCYCLE_TRACEBACK"):
            raise
        print(f"vcycle: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"vcycle: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="vcycle",
        description="Multigrid training for video models: the same accuracy, several times faster.",
    )
    parser.set_defaults(takes_fields=False)
    commands = parser.add_subparsers(title="commands", required=True)

    _add_runs(commands)
    models = commands.add_parser("models", help="list the models and what they cost")
    models.add_argument("--shape", default="32x224x224", help="of the clip that costs are given at")
    models.add_argument("--json", action="store_true", help="print JSON")
    models.set_defaults(run=_models)

    demo = commands.add_parser("demo", help="train on generated videos, with and without multigrid")
    demo.add_argument("--folder", help="where everything is written; runs/demo unless given")
    demo.add_argument("--quick", action="store_true", help="two minutes instead of ten")
    demo.set_defaults(run=_demo)

    _add_bench(commands.add_parser("bench", help="measure on this machine and your videos"))
    add_data_flags(commands.add_parser("data", help="make, index and prepare videos"))
    return parser


def _add_runs(commands: argparse._SubParsersAction[FlagParser]) -> None:
    """The commands whose configuration any dotted flag may change."""
    plan = commands.add_parser("plan", help="print or draw what a run will do", epilog=FIELDS_HELP)
    add_plan_flags(plan)
    plan.set_defaults(run=run_plan_command, takes_fields=True)

    training = commands.add_parser("train", help="train as a recipe says", epilog=FIELDS_HELP)
    add_train_flags(training)
    evaluation = commands.add_parser("eval", help="score a run's checkpoint", epilog=FIELDS_HELP)
    add_eval_flags(evaluation)


def _add_bench(bench: FlagParser) -> None:
    measured = bench.add_subparsers(title="what to measure", required=True)
    loader = measured.add_parser(
        "loader", help="clips per second, beside the bare decode and peers"
    )
    loader.add_argument("video_dir", help="a folder of video files, at any depth")
    loader.add_argument("--prepared-dir", help="keep the prepared videos there")
    loader.add_argument("--num-clips", type=int, default=64, help="of each row")
    loader.add_argument("--no-peers", action="store_true", help="leave other libraries out")
    loader.add_argument("--json", action="store_true", help="print JSON")
    loader.set_defaults(run=_bench_loader)


def _models(options: argparse.Namespace, _: Sequence[str]) -> None:
    from vcycle.models.count import model_costs

    try:
        rows = model_costs(Shape.parse(options.shape))
    except RuntimeError as error:  # more numbers in one tensor than an address has
        raise ValueError(f"shape {options.shape}: {error}; use a smaller one") from error
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print(f"{'model':<32}{'parameters':>12}  multiply-adds of a clip of {options.shape}")
    for row in rows:
        print(f"{row.name:<32}{row.parameters:>12,}  {row.multiply_adds:>20,}")


def _demo(options: argparse.Namespace, _: Sequence[str]) -> None:
    from vcycle.demo.comparison import run_demo

    run_demo(options.folder, quick=options.quick)


def _bench_loader(options: argparse.Namespace, _: Sequence[str]) -> None:
    from vcycle.bench.loader import LoaderRow, bench_loader

    def show(row: LoaderRow) -> None:
        print(
            f"{row.source:<16}{row.shape:>8}{row.clips_per_second:>10.1f} clips/s"
            f"{row.cpu_ms_per_clip:>9.1f} ms/clip",
            flush=True,
        )

    rows = bench_loader(
        options.video_dir,
        prepared_dir=options.prepared_dir,
        num_clips=options.num_clips,
        peers=not options.no_peers,
        progress=None if options.json else show,
        remark=lambda text: print(f"vcycle: {text}", file=sys.stderr),
    )
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
