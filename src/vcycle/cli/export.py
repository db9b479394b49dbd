"""``vcycle export``: a trained model for other programs, or for the Hugging Face hub.

In: a run folder or checkpoint. Out: a file, or a folder.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from vcycle.cli.trained_model import add_model_flags, model_of
from vcycle.cli.waiting import starting_pytorch, waiting_for
from vcycle.config.flag_parser import FlagParser


def add_export_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle export``."""
    add_model_flags(parser)
    parser.add_argument(
        "--format",
        metavar="onnx|torch|safetensors",
        help="what to write (default: by the file's ending, .onnx, .pt2 or .safetensors)",
    )
    parser.add_argument("--out", metavar="FILE", help="where to write it")
    parser.add_argument(
        "--normalise",
        action="store_true",
        help="take pixels from 0 to 255, and normalise inside",
    )
    parser.add_argument(
        "--hub", metavar="FOLDER", help="write weights, config and model card there instead"
    )
    parser.add_argument(
        "--evaluation",
        metavar="FILE",
        help="what the model card says: the output of vcycle eval --json (default: the run's)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the files in --hub")
    parser.set_defaults(run=run_export_command)


def run_export_command(options: argparse.Namespace) -> None:
    """Export, and say what was checked or what comes next. Raises ValueError for a mistake."""
    if options.hub is not None:
        _export_hub(options)
        return
    if options.out is None:
        raise ValueError("--out: give a file such as model.onnx; or --hub FOLDER")
    if options.evaluation is not None or options.overwrite:
        raise ValueError("--evaluation and --overwrite: they are for --hub; leave them out")
    with starting_pytorch():
        from vcycle.evaluate.export import export_model, format_of

    format = options.format or format_of(options.out)
    with waiting_for(f"exporting {options.model}"):
        model = model_of(options)
        shapes = export_model(model, options.out, format=format, normalise=options.normalise)
    size = Path(options.out).stat().st_size / 1e6
    checked = f"; same scores as PyTorch at {', '.join(map(str, shapes))}" if shapes else ""
    print(f"{options.out}: {size:.1f} MB{checked}")


def _export_hub(options: argparse.Namespace) -> None:
    if options.format is not None or options.out is not None or options.normalise:
        raise ValueError("--hub: it takes no --format, --out or --normalise; leave them out")
    with starting_pytorch():
        from vcycle.evaluate.figures import figures_of
        from vcycle.evaluate.hub import check_hub_folder, export_hub

    check_hub_folder(options.hub, overwrite=options.overwrite)
    with waiting_for(f"exporting {options.model}"):
        model = model_of(options)
        figures = figures_of(model, Path(options.evaluation) if options.evaluation else None)
        export_hub(model, options.hub, figures=figures, overwrite=options.overwrite)
    folder = Path(options.hub)
    print(f"{folder}: {', '.join(sorted(each.name for each in folder.iterdir()))}")
    print("name a license in its README.md; then, with the hub's own client:")
    print(f"  hf upload USER/{shlex.quote(folder.resolve().name)} {shlex.quote(str(folder))}")
