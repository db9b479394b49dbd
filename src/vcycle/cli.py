"""The command line. Each command reads its arguments, calls one function, and prints.

What a user got wrong is one line on standard error and exit code 2; an interrupted command is exit
code 130. Commands import what they need when they run: printing a plan must not wait for torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from vcycle.config_flags import FIELDS_HELP, FlagParser, add_config_flags, run_config
from vcycle.plan_command import add_plan_flags, run_plan_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        parser = _parser()
        options, fields = parser.parse_known_args(arguments)
        if fields and not hasattr(options, "recipe"):
            parser.error(f"unrecognized arguments: {' '.join(fields)}")
        options.run(options, fields)
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
    commands = parser.add_subparsers(title="commands", required=True)

    plan = commands.add_parser("plan", help="print or draw what a run will do", epilog=FIELDS_HELP)
    add_plan_flags(plan)
    plan.set_defaults(run=run_plan_command)

    training = commands.add_parser("train", help="train as a recipe says", epilog=FIELDS_HELP)
    add_config_flags(training)
    training.add_argument("--folder", help="run folder, runs/RECIPE unless given")
    training.add_argument("--resume", action="store_true", help="go on from the checkpoint there")
    training.set_defaults(run=_train)

    demo = commands.add_parser("demo", help="train on generated videos, with and without multigrid")
    demo.add_argument("--folder", default="runs/demo", help="where everything is written")
    demo.add_argument("--quick", action="store_true", help="two minutes instead of ten")
    demo.set_defaults(run=_demo)

    data = commands.add_parser("data", help="make videos and manifests")
    actions = data.add_subparsers(title="actions", required=True)
    synth = actions.add_parser("synth", help="write generated action videos and their manifest")
    synth.add_argument("folder", help="where they are written")
    synth.add_argument("--train-videos", type=int, default=1200)
    synth.add_argument("--val-videos", type=int, default=240)
    synth.add_argument("--seed", type=int, default=0, help="the same seed writes the same files")
    synth.set_defaults(run=_data_synth)
    return parser


def _train(options: argparse.Namespace, fields: Sequence[str]) -> None:
    from vcycle.train.loop import train

    config = run_config(options, fields)
    train(config, options.folder or Path("runs") / config.recipe, resume=options.resume)


def _demo(options: argparse.Namespace, _: Sequence[str]) -> None:
    from vcycle.demo import run_demo

    run_demo(options.folder, quick=options.quick)


def _data_synth(options: argparse.Namespace, _: Sequence[str]) -> None:
    from vcycle.demo import write_demo_videos

    write_demo_videos(
        Path(options.folder),
        train_videos=options.train_videos,
        val_videos=options.val_videos,
        seed=options.seed,
        console=Console(),
    )


if __name__ == "__main__":
    sys.exit(main())
