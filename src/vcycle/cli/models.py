"""``vcycle models``: the networks, their other names, and what they cost.

In: a shape. Out: a row for each network.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from dataclasses import asdict

from vcycle.cli.waiting import starting_pytorch
from vcycle.config.flag_parser import FlagParser
from vcycle.models.entries import MODELS, find_model
from vcycle.schedule.shape import Shape


def add_models_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle models``."""
    parser.add_argument("--shape", default="32x224x224", help="of the clip that costs are given at")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_models_command)


def run_models_command(options: argparse.Namespace) -> None:
    """Count and print, in 80 columns."""
    with starting_pytorch():
        from vcycle.models.count import model_costs

    costs = model_costs(Shape.parse(options.shape), names=[entry.name for entry in MODELS])
    if options.json:
        rows = [{**asdict(cost), "aliases": find_model(cost.name).aliases} for cost in costs]
        print(json.dumps(rows, indent=1))
        return
    print(f"{'model':<32}{'parameters':>12}  {f'multiply-adds at {options.shape}':>28}")
    for cost in costs:
        print(f"{cost.name:<32}{cost.parameters:>12,}  {cost.multiply_adds:>28,}")
        if aliases := find_model(cost.name).aliases:
            print(
                textwrap.fill(
                    f"also {', '.join(aliases)}",
                    80,
                    initial_indent="  ",
                    subsequent_indent="       ",
                )
            )
