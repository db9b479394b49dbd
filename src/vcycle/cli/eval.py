"""``vcycle eval``: the accuracy of a run's checkpoint, over any views of any split.

In: a run folder and flags. Out: the scores, printed.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_field_flags, read_config


def add_eval_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle eval``, and those of fields."""
    parser.usage = f"{parser.prog} RUN [flags]"
    add_field_flags(parser)
    parser.add_argument("folder", help="a run folder")
    parser.add_argument("--split", default="val", help="of the manifest (default: val)")
    parser.add_argument(
        "--best", action="store_true", help="not the newest checkpoint but the best"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_eval_command)


def run_eval_command(options: argparse.Namespace) -> None:
    """Evaluate and print. Raises ValueError for what a user got wrong."""
    from vcycle.evaluate.run import evaluate_run
    from vcycle.evaluate.setup import destroy_process_group

    folder = Path(options.folder)
    if not (folder / "config.yaml").is_file():
        raise ValueError(
            f"run folder {folder}: no config.yaml in it; give a folder of vcycle train"
        )
    config = read_config(folder / "config.yaml", options.fields)
    checkpoint = "best" if options.best else "checkpoint"
    result = evaluate_run(config, folder, split=options.split, checkpoint=checkpoint)
    destroy_process_group()
    if int(os.environ.get("RANK", 0)) == 0:  # of several processes one prints
        print(json.dumps(result, indent=1) if options.json else _line(options, result))


def _line(options: argparse.Namespace, result: dict[str, Any]) -> str:
    scores = ", ".join(
        f"{key} {result[key]:.2%}" for key in ("top1", "top5", "map") if key in result
    )
    return (
        f"{options.folder}: {scores} on {result['videos']} videos of {options.split}, "
        f"{result['coverage']:.1%} of those listed "
        f"({result['views']} views each, after {result['steps']} steps)"
    )
