"""``vcycle train``: train as a recipe says.

In: a recipe and flags. Out: a run folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_config_flags, run_config


def add_train_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle train``: those of every run, and where it writes."""
    add_config_flags(parser)
    parser.add_argument("--folder", help="run folder, runs/RECIPE unless given")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="auto",
        help="go on from the checkpoint there; auto: or begin, if there is none",
    )
    parser.set_defaults(run=run_train_command)


def run_train_command(options: argparse.Namespace) -> None:
    """Train. Raises ValueError for what a user got wrong."""
    if options.resume not in (False, True, "auto"):
        raise ValueError(
            f"--resume {options.resume}: give auto, or nothing; a recipe's name comes before it"
        )
    config = run_config(options)  # what a user got wrong must not wait for torch

    from vcycle.evaluate.setup import destroy_process_group
    from vcycle.train.loop import train

    train(config, options.folder or Path("runs") / config.recipe, resume=options.resume)
    destroy_process_group()
