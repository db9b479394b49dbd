"""The precision of a run on one's own videos: the machine's, if nobody asked for one.

In: a configuration and the flags that it came of. Out: it in what this machine does most steps in.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from vcycle.cli.waiting import starting_pytorch
from vcycle.config.recipes import USER_RECIPES
from vcycle.config.run import RunConfig


def is_left_to_machine(options: argparse.Namespace) -> bool:
    """Whether the machine that trains chooses the precision."""
    return options.recipe in USER_RECIPES and "precision" not in options.fields


def in_fastest_precision(config: RunConfig, *, is_timed: bool) -> RunConfig:
    """With the precision that this machine does most steps in: on a CPU if a time was given."""
    with starting_pytorch():
        from vcycle.devices.precision import fastest_precision

    least_frames = min(shape.frames for shape in config.plan().shapes)
    fastest = fastest_precision(config.model.name, least_frames=least_frames)
    if fastest == config.precision:
        return config
    if fastest == "tf32":
        note = (
            "precision tf32, in which torch by itself convolves on a GPU that has it: --precision "
            "bf16-mixed is faster, 32-true exact"
        )
        return replace(config, precision=fastest, notes=(*config.notes, note))
    found = "in the study's runs the loss was the same, top-1 level or a little lower"
    if not is_timed:
        note = f"--precision {fastest} is faster on this CPU: {found}"
        return replace(config, notes=(*config.notes, note))
    note = f"precision {fastest}, in which this CPU does more steps in the time: {found}"
    return replace(config, precision=fastest, notes=(*config.notes, note))
