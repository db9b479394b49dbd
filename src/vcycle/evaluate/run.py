"""The accuracy of a run's checkpoint, over any views of any split.

In: a run folder and its configuration, which may ask for other views. Out: the scores.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from vcycle.config.run import RunConfig
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.evaluate.evaluate import evaluate
from vcycle.evaluate.loaders import make_eval_loader
from vcycle.evaluate.norms import estimate_norms
from vcycle.evaluate.setup import make_fabric, make_network, read_manifest


def evaluate_run(config: RunConfig, folder: Path, *, split: str) -> dict[str, Any]:
    """The scores of the checkpoint in ``folder`` on a split of the configuration's manifest.

    Raises ValueError if the checkpoint is of another model or of other classes.
    """
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
    network = make_network(config, num_classes=manifest.num_classes, fabric=fabric, fresh=False)
    network.load_state_dict(state["model"])
    model = fabric.setup_module(network)
    if config.evaluation.precise_bn:
        estimate_norms(model, config, manifest.split("train"), fabric)
    with closing(make_eval_loader(config, videos, fabric)) as loader:
        scores = evaluate(network, loader, videos, fabric=fabric)
    views = config.evaluation.num_clips * config.evaluation.num_crops
    return {"views": views, "steps": state["next_step"], **scores}
