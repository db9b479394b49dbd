"""``vcycle export``: a trained model for other programs.

In: a run folder or checkpoint. Out: a file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vcycle.config.flag_parser import FlagParser


def add_export_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle export``."""
    parser.add_argument("model", metavar="RUN", help="a run folder, or a checkpoint of one")
    parser.add_argument(
        "--format", required=True, metavar="onnx|torch|safetensors", help="what to write"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="where to write it")
    parser.add_argument(
        "--normalise",
        action="store_true",
        help="take pixels from 0 to 255, and normalise inside",
    )
    parser.add_argument("--best", action="store_true", help="the best checkpoint, not the newest")
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="let the checkpoint name a function of your own code as its model",
    )
    parser.set_defaults(run=run_export_command)


def run_export_command(options: argparse.Namespace) -> None:
    """Export, and say what was checked. Raises ValueError for what a user got wrong."""
    from vcycle.evaluate.export import export_model
    from vcycle.evaluate.load_model import load_model

    model = load_model(options.model, best=options.best, trust_code=options.trust_code)
    shapes = export_model(model, options.out, format=options.format, normalise=options.normalise)
    size = Path(options.out).stat().st_size / 1e6
    checked = f"; same scores as PyTorch at {', '.join(map(str, shapes))}" if shapes else ""
    print(f"{options.out}: {size:.1f} MB{checked}")
