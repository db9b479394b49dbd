"""``vcycle demo``: train on generated videos, with and without multigrid.

In: a folder. Out: the videos, five runs and their comparison in it.
"""

from __future__ import annotations

import argparse

from vcycle.cli.waiting import starting_pytorch
from vcycle.config.flag_parser import FlagParser


def add_demo_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle demo``."""
    parser.add_argument("--folder", help="where everything is written; runs/demo unless given")
    parser.add_argument(
        "--quick", action="store_true", help="two to four minutes instead of six to fifteen"
    )
    parser.set_defaults(run=run_demo_command, is_logged=True)


def run_demo_command(options: argparse.Namespace) -> None:
    """Run the demo."""
    with starting_pytorch():
        from vcycle.demo.comparison import run_demo

    try:
        run_demo(options.folder, quick=options.quick)
    except KeyboardInterrupt as stop:
        said = str(stop) or "interrupted"
        raise KeyboardInterrupt(f"{said}; the same command goes on") from None
