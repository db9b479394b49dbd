"""``vcycle train``: train as a recipe says.

In: a recipe and flags. Out: a run folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from vcycle.config.flags import add_config_flags, run_config


def add_train_flags(parser: argparse.ArgumentParser) -> None:
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
    parser.set_defaults(run=run_train_command, takes_fields=True)


def run_train_command(options: argparse.Namespace, left_over: Sequence[str]) -> None:
    """Train. Raises ValueError for what a user got wrong."""
    if options.resume not in (False, True, "auto"):
        raise ValueError(
            f"--resume {options.resume}: give auto, or nothing; a recipe's name comes before flags"
        )
    config = run_config(options, left_over)  # what a user got wrong must not wait for torch

    from vcycle.evaluate.setup import destroy_process_group
    from vcycle.train.loop import train

    train(config, options.folder or Path("runs") / config.recipe, resume=options.resume)
    destroy_process_group()
