"""Weights of a run of one's own, from which another starts: they say which network they are of.

In: the flags of a command that plans a run. Out: the same, with the network of the weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vcycle.cli.launched import is_first
from vcycle.cli.waiting import starting_pytorch
from vcycle.config.recipes import USER_RECIPES


def use_model_of_weights(options: argparse.Namespace) -> None:
    """Have a recipe for one's own videos take the network that a run's weights are of.

    Unless another is asked for, or the weights are no run's, or not there. A function of one's own
    has to be asked for, and gets the options that it had. Raises ValueError if it is not.
    """
    file, chosen = Path(options.fields.get("model.weights") or ""), options.fields.get("model.name")
    is_ours = chosen is not None and ":" not in chosen
    if options.recipe not in USER_RECIPES or is_ours or not file.is_file():
        return
    with starting_pytorch():
        from vcycle.evaluate.checkpoint import find_trained_model

    trained = find_trained_model(file)
    if trained is None or chosen not in (None, trained.name):
        return
    if ":" in trained.name and chosen is None:
        raise ValueError(
            f"{file}: weights of the function {trained.name}; give --model {trained.name}"
        )
    if is_first():
        print(f"{file}: weights of {trained.name}, which is the model", file=sys.stderr)
    builder = {**trained.options, **options.fields.get("model.options", {})}
    of_model = {"model.name": trained.name, "model.options": builder}
    options.fields = {**options.fields, **of_model}
