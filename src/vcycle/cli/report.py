"""``vcycle report``: what runs did, as one HTML file.

In: run folders. Out: a file.
"""

from __future__ import annotations

import argparse

from vcycle.config.flag_parser import FlagParser


def add_report_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle report``."""
    parser.add_argument("folders", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", required=True, metavar="FILE", help="the HTML file to write")
    parser.set_defaults(run=run_report_command)


def run_report_command(options: argparse.Namespace) -> None:
    """Write the report. Raises ValueError for what a user got wrong."""
    from vcycle.report.html import write_report

    write_report(options.folders, options.out)
    print(options.out)
