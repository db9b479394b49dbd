"""``vcycle doctor``: what this machine is made of, and what to change before training on it.

In: a folder on the disk of the videos. Out: facts and advice; the exit code is 0 either way.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from vcycle.cli.waiting import starting_pytorch, waiting_for
from vcycle.config.flag_parser import FlagParser

if TYPE_CHECKING:
    from vcycle.bench.machine import Machine


def add_doctor_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle doctor``."""
    parser.add_argument("--folder", default=".", help="whose disk is measured (default: this one)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_doctor_command)


def run_doctor_command(options: argparse.Namespace) -> None:
    """Look at the machine and print, in 80 columns."""
    with starting_pytorch():
        from vcycle.bench.machine import advice, inspect_machine

    folder = Path(options.folder)
    if not folder.is_dir():
        raise ValueError(f"folder {folder}: no such directory; give one on the disk of the videos")
    with waiting_for(f"looking at this machine and the disk of {folder}"):
        machine = inspect_machine(folder)
    if options.json:
        print(json.dumps(machine.to_dict(), indent=1))
        return
    for name, text in _facts(machine):
        print(_wrapped(f"{name:<14}", text))
    print()
    lines = list(advice(machine))
    print("\n".join(_wrapped("- ", line) for line in lines) if lines else "nothing to change")


def _facts(machine: Machine) -> list[tuple[str, str]]:
    versions = [f"{name} {number}" for name, number in machine.versions.items() if number]
    gpus = [f"{g.name}, {g.memory_gib:.0f} GiB, sm {g.compute_capability}" for g in machine.gpus]
    disk = machine.disk
    return [
        ("versions", ", ".join(versions)),
        ("CUDA", f"{machine.cuda or 'none'}, cuDNN {machine.cudnn or 'none'}"),
        ("GPUs", "; ".join(gpus) or "none"),
        *machine.decoders.items(),
        ("CPUs", str(machine.cpus)),
        ("memory", f"{machine.memory_gib:.1f} GiB"),
        ("shared memory", f"{machine.shared_memory_gib:.2g} GiB in /dev/shm"),
        ("open files", f"{machine.open_files:,}, at most {machine.open_files_limit:,}"),
        (
            "disk",
            f"{disk.folder}: {disk.write_mb_per_second:,.0f} MB/s written, "
            f"{disk.read_mb_per_second:,.0f} MB/s read, {disk.free_gib:,.0f} GiB free",
        ),
    ]


def _wrapped(start: str, text: str) -> str:
    return textwrap.fill(
        text, 80, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    )
