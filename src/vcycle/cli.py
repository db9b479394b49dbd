"""The command line. Each command reads its arguments, calls one function, and prints.

What a user got wrong is one line on standard error and exit code 2; an interrupted run is exit
code 130.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentError, ArgumentParser, Namespace
from rich.console import Console

_DESCRIPTION = "Multigrid training for video models: the same accuracy, several times faster."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        options = _parser().parse_args(arguments)
        return _run(options)
    except (ValueError, OSError, ArgumentError) as error:
        if os.environ.get("VCYCLE_TRACEBACK"):
            raise
        print(f"vcycle: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"vcycle: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130


def _run(options: Namespace) -> int:
    # Commands import what they need: printing a plan must not wait for torch.
    if options.command == "demo":
        from vcycle.demo import run_demo

        run_demo(options.demo.folder, quick=options.demo.quick)
    elif options.command == "data":
        from vcycle.demo import write_demo_videos

        synth = options.data.synth
        write_demo_videos(
            Path(synth.folder),
            train_videos=synth.train_videos,
            val_videos=synth.val_videos,
            seed=synth.seed,
            console=Console(),
        )
    return 0


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="vcycle", description=_DESCRIPTION, exit_on_error=False)
    commands = parser.add_subcommands(dest="command")
    commands.add_subcommand("demo", _demo_parser(), help="train on generated videos and compare")
    data = ArgumentParser(exit_on_error=False)
    commands.add_subcommand("data", data, help="make, index and prepare videos")
    actions = data.add_subcommands(dest="action")
    actions.add_subcommand("synth", _synth_parser(), help="write generated action videos")
    return parser


def _demo_parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--folder", default="runs/demo", help="where everything is written")
    parser.add_argument("--quick", action="store_true", help="two minutes instead of ten")
    return parser


def _synth_parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("folder", help="where the videos and their manifest are written")
    parser.add_argument("--train-videos", type=int, default=1200)
    parser.add_argument("--val-videos", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    return parser
