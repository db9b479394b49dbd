"""The published weights that a run can start from: which file fits its model, and where it is.

In: a run's configuration. Out: words for a person, or a ValueError of one line. Nothing is
downloaded, and nothing here needs torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from vcycle.config.run import Model, RunConfig
from vcycle.models.entries import IMAGENET_PAGE, KINETICS_PAGE, MODELS


def published_weights(model: Model, kind: Literal["imagenet", "kinetics400"]) -> str | None:
    """Which published file fits a model and where it is; None if none is known to."""
    if model.entry is None:
        return None
    if kind == "kinetics400":
        file, page = model.entry.kinetics_file, KINETICS_PAGE
    else:
        file, page = model.entry.image_resnet, IMAGENET_PAGE
    return file and f"{model.name} takes {file} of {page}"


def check_weights_file(model: Model) -> None:
    """Raise ValueError if a model's weights are given, and not there."""
    file = model.weights
    if file is not None and Path(file).is_dir():
        own = min(Path(file).glob("[!.]*.safetensors"), default="a file of weights in it")
        raise ValueError(f"model.weights {file}: a folder; give {own}")
    if file is not None and "://" not in file and not Path(file).exists():
        found = published_weights(model, model.pretrained_on or "kinetics400")
        hint = found or "give the file of a checkpoint of this model"
        raise ValueError(f"model.weights {file}: no such file; {hint}")


def check_weights(config: RunConfig) -> None:
    """Raise ValueError if the weights that a new run starts from are not given, or not there."""
    model = config.model
    if model.weights is not None:
        check_weights_file(model)
        return
    kind = model.pretrained_on
    if kind is None:
        return
    needs = f"model.weights: recipe {config.recipe} starts from {kind} weights"
    if found := published_weights(model, kind):
        raise ValueError(
            f"{needs}; {found}: download it and give --weights FILE, or "
            f"--model.pretrained_on null for random ones"
        )
    known = [entry.name for entry in MODELS if entry.kinetics_file]
    raise ValueError(
        f"{needs}, and none are known for {model.name}; give your own with --weights FILE, "
        f"--model.pretrained_on null for random ones, or a --model that has some: "
        f"{', '.join(known)}"
    )
