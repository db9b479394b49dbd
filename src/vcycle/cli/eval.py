"""``vcycle eval``: the accuracy of a run's checkpoint, over any views of any split.

In: a run folder and flags. Out: the scores, printed and returned.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_field_flags, read_config
from vcycle.config.run import RunConfig


def add_eval_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle eval``, and those of fields."""
    parser.usage = f"{parser.prog} RUN [flags]"
    add_field_flags(parser)
    parser.add_argument("folder", help="a run folder")
    parser.add_argument("--split", default="val", help="of the manifest (default: val)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_eval_command)


def run_eval_command(options: argparse.Namespace) -> None:
    """Evaluate and print; all processes leave together."""
    from vcycle.train.setup import leave_processes

    try:
        _score(options)
    finally:
        leave_processes()


def _score(options: argparse.Namespace) -> None:
    folder = Path(options.folder)
    if not (folder / "config.yaml").is_file():
        raise ValueError(
            f"run folder {folder}: no config.yaml in it; give a folder of vcycle train"
        )
    result = evaluate_run(
        read_config(folder / "config.yaml", options.fields), folder, split=options.split
    )
    if int(os.environ.get("RANK", 0)):
        return  # of several processes one prints
    if options.json:
        print(json.dumps(result, indent=1))
        return
    scores = ", ".join(
        f"{key} {result[key]:.2%}" for key in ("top1", "top5", "map") if key in result
    )
    print(
        f"{folder}: {scores} on {result['videos']} videos of {options.split}, "
        f"{result['coverage']:.1%} of those listed "
        f"({result['views']} views each, after {result['steps']} steps)"
    )


def evaluate_run(config: RunConfig, folder: Path, *, split: str) -> dict[str, Any]:
    """The scores of the checkpoint in ``folder``.

    Raises ValueError if it does not fit the manifest or the model.
    """
    from vcycle.evaluate.evaluate import evaluate
    from vcycle.train.checkpoint import load_checkpoint
    from vcycle.train.setup import (
        build,
        estimate_norms,
        make_eval_loader,
        make_fabric,
        read_manifest,
    )

    manifest = read_manifest(config)
    videos = manifest.split(split)
    fabric = make_fabric(config)
    state = load_checkpoint(folder / "checkpoint.pt")
    if state["classes"] != list(manifest.classes):
        raise ValueError(
            f"{manifest.root / 'classes.txt'}: its classes are not those that {folder} was trained "
            f"on; give the manifest of that run or one with the same classes"
        )
    trained = (state["model_name"], state["model_options"])
    if (config.model.name, config.model.options) != trained:
        raise ValueError(
            f"model {config.model.name}: {folder} trained {trained[0]} with options {trained[1]}; "
            f"leave --model out"
        )
    built = build(config, manifest, fabric, fresh=False)
    built.load_state_dict(state["model"])
    model = fabric.setup_module(built)
    if config.evaluation.precise_bn:
        estimate_norms(model, config, manifest.split("train"), fabric)
    with closing(make_eval_loader(config, videos, fabric)) as loader:
        scores = evaluate(model, loader, videos, fabric=fabric)
    views = config.evaluation.num_clips * config.evaluation.num_crops
    return {"views": views, "steps": state["next_step"], **scores}
