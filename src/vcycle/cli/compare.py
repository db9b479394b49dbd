"""``vcycle compare``: what runs took to reach an accuracy.

In: run folders. Out: a table or JSON, printed.
"""

from __future__ import annotations

import argparse
import json

from vcycle.config.flag_parser import FlagParser


def add_compare_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle compare``."""
    parser.add_argument("folders", nargs="+", metavar="RUN", help="run folders, at least two")
    parser.add_argument(
        "--at-accuracy",
        type=float,
        metavar="X",
        help="from 0 to 1 (default: of the first run's last validation)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_compare_command)


def run_compare_command(options: argparse.Namespace) -> None:
    """Compare and print. Raises ValueError for what a user got wrong."""
    from vcycle.report.compare import compare_runs, comparison_text

    values = compare_runs(options.folders, at_accuracy=options.at_accuracy)
    print(json.dumps(values, indent=1) if options.json else comparison_text(values))
