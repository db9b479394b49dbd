"""The accuracy of a run's checkpoint, over any views of any split.

In: a run folder and its configuration, which may ask for other views. Out: the scores.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from vcycle.config.run import RunConfig
from vcycle.evaluate.checkpoint import TrainedModel, load_checkpoint
from vcycle.evaluate.evaluate import evaluate
from vcycle.evaluate.loaders import make_eval_loader
from vcycle.evaluate.norms import estimate_norms
from vcycle.evaluate.processes import ending_together
from vcycle.evaluate.setup import make_fabric, make_network, read_manifest


def evaluate_run(
    config: RunConfig, folder: Path, *, split: str, checkpoint: str = "checkpoint"
) -> dict[str, Any]:
    """The scores of a checkpoint in ``folder`` on a split of the configuration's manifest.

    ``checkpoint`` is the newest one's name, or "best". Raises ValueError if it is of another model
    or of other classes.
    """
    manifest = read_manifest(config)
    videos = manifest.split(split)
    fabric = make_fabric(config)
    with ending_together(fabric):
        state = load_checkpoint(folder / f"{checkpoint}.pt")
        trained = TrainedModel.from_dict(state["trained"])
        if trained.classes != manifest.classes:
            raise ValueError(
                f"{manifest.root / 'classes.txt'}: its classes are not those that {folder} was "
                f"trained on; give the manifest of that run or one with the same classes"
            )
        if (config.model.name, config.model.options) != (trained.name, trained.options):
            raise ValueError(
                f"model {config.model.name}: {folder} trained {trained.name} with options "
                f"{trained.options}; leave --model out"
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
