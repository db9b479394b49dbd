"""``vcycle bench``: what this machine does with your videos, and with a plan's steps.

In: a folder of videos. Out: clips per second and CPU time per clip, beside the bare decode and
other libraries. Steps are in ``bench_step``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from vcycle.cli.bench_step import add_bench_step_flags
from vcycle.cli.launched import is_one_of_several
from vcycle.cli.waiting import starting_pytorch
from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import FIELDS_HELP

if TYPE_CHECKING:
    from vcycle.bench.loader import LoaderRow


def add_bench_flags(parser: FlagParser) -> None:
    """Add what can be measured, and its flags."""
    measured = parser.add_subparsers(title="what to measure", required=True)
    loader = measured.add_parser(
        "loader", help="clips per second, beside the bare decode and peers"
    )
    loader.add_argument("video_dir", help="a folder of video files, at any depth")
    loader.add_argument("--prepared-dir", help="keep the prepared videos there")
    loader.add_argument("--num-clips", type=int, default=64, help="of each row")
    loader.add_argument("--no-peers", action="store_true", help="leave other libraries out")
    loader.add_argument("--json", action="store_true", help="print JSON")
    loader.set_defaults(run=run_bench_loader)
    step = measured.add_parser(
        "step",
        help="seconds and memory of a plan's training steps",
        word="recipe",
        epilog=FIELDS_HELP,
    )
    add_bench_step_flags(step)


def run_bench_loader(options: argparse.Namespace) -> None:
    """Measure the loader and print a row for each source and shape."""
    if is_one_of_several():
        raise ValueError("bench loader: it runs in one process; start it without torchrun")
    with starting_pytorch():
        from vcycle.bench.loader import bench_loader

    rows = bench_loader(
        options.video_dir,
        prepared_dir=options.prepared_dir,
        num_clips=options.num_clips,
        peers=not options.no_peers,
        progress=None if options.json else _show,
        remark=lambda text: print(f"vcycle: {text}", file=sys.stderr),
    )
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))


def _show(row: LoaderRow) -> None:
    print(
        f"{row.source:<16}{row.shape:>8}{row.clips_per_second:>10.1f} clips/s"
        f"{row.cpu_ms_per_clip:>9.1f} ms/clip",
        flush=True,
    )
