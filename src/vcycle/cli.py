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
from typing import NoReturn

from rich.console import Console


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        options = _parser().parse_args(arguments)
        options.run(options)
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


class FlagParser(argparse.ArgumentParser):
    """An argparse parser whose errors are a ValueError of one line."""

    def error(self, message: str) -> NoReturn:
        """ValueError instead of a usage text and an exit."""
        raise ValueError(message)


def _parser() -> FlagParser:
    parser = FlagParser(
        prog="vcycle",
        description="Multigrid training for video models: the same accuracy, several times faster.",
    )
    commands = parser.add_subparsers(title="commands", required=True)

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


def _demo(options: argparse.Namespace) -> None:
    from vcycle.demo import run_demo

    run_demo(options.folder, quick=options.quick)


def _data_synth(options: argparse.Namespace) -> None:
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
