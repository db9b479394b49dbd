"""Which trained model a command takes: the flags that ``predict`` and ``export`` have in common.

In: flags. Out: a LoadedModel.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vcycle.config.flag_parser import FlagParser

if TYPE_CHECKING:
    from vcycle.evaluate.load_model import LoadedModel


def add_model_flags(parser: FlagParser) -> None:
    """Add the model and what decides how it is loaded."""
    parser.add_argument(
        "model", metavar="RUN", help="a run folder, a checkpoint of one, or an exported folder"
    )
    parser.add_argument("--best", action="store_true", help="the best checkpoint, not the newest")
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="let the checkpoint name a function of your own code as its model",
    )


def model_of(options: argparse.Namespace, *, device: str = "cpu") -> LoadedModel:
    """Load it. Raises ValueError if there is none, or it is damaged or of code of its own."""
    from vcycle.evaluate.load_model import load_model

    return load_model(
        options.model, best=options.best, trust_code=options.trust_code, device=device
    )
