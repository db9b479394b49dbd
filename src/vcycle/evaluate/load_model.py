"""A trained model as a plain module, from whatever ``vcycle train`` left behind.

In: a run folder, a checkpoint or its ``.safetensors``, or a folder for the hub. Out: a LoadedModel:
the module in evaluation mode, with ``nn.BatchNorm3d`` layers and no trace of multigrid, and all
that its clips and scores need beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vcycle.data.batch import normalize
from vcycle.data.grid import GridRange
from vcycle.evaluate.checkpoint import load_tensors, read_trained_model
from vcycle.evaluate.trained_model import TrainedModel
from vcycle.models import build_model
from vcycle.schedule.messages import shortened
from vcycle.schedule.shape import Shape


@dataclass(frozen=True)
class LoadedModel:
    """A module that takes (B, 3, T, H, W) clips and returns (B, classes) scores before softmax.

    Args:
        module: in evaluation mode, on the CPU until it is moved, with plain norms.
        trained: what the checkpoint says of it.
        path: the file that it came from.
    """

    module: nn.Module
    trained: TrainedModel
    path: Path

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the scores, in order."""
        return self.trained.classes

    @property
    def shape(self) -> Shape:
        """T x H x W of the clips that training ended on."""
        return Shape.parse(self.trained.shape)

    @property
    def grid_range(self) -> GridRange:
        """How clips were sampled in training."""
        known = self.trained
        return GridRange(
            self.shape,
            known.stride,
            known.short_side,
            frame_rate=known.frame_rate,
            segments=known.segments,
        )

    def normalize(self, clips: Tensor) -> Tensor:
        """uint8 (N, 3, T, H, W), 0 to 255 -> the floats that the module takes."""
        return normalize(clips, mean=self.trained.mean, std=self.trained.std)


HUB_WEIGHTS = "model.safetensors"
"""In a folder that ``vcycle export --hub`` wrote."""


def load_model(
    path: str | Path,
    *,
    best: bool = False,
    averaged: bool = True,
    trust_code: bool = False,
    device: str = "cpu",
) -> LoadedModel:
    """Load the model of a run folder, a checkpoint, or a safetensors file with metadata.

    A folder that ``vcycle export --hub`` wrote, downloaded again or not, is as good as a run's.

    Of a run folder the newest checkpoint is taken, with ``best`` that with the best validation. A
    file may name a function of somebody's own code as its model; it is called only with
    ``trust_code``. Further training with norm groups starts from
    ``convert_batch_norm(model.module)``.

    Of a run with ``ema_decay`` its averaged weights are loaded, which were validated; ``averaged``
    False loads those of the last step instead, which only ``.pt`` files have.

    Raises ValueError, in one line, if there is no such file, or it is damaged, of another program,
    or does not fit the model and the classes that it names.
    """
    file = find_checkpoint(path, best=best, averaged=averaged)
    trained = read_trained_model(file)
    if ":" in trained.name and not trust_code:
        raise ValueError(
            f"{file}: its model is the function {trained.name}, which is code of its own; if you "
            f"know it, give trust_code=True, --trust-code at the command line"
        )
    if ":" not in trained.name:
        check_size(file, trained)
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices):  # fresh weights are drawn, and replaced at once
        module = build_model(trained.name, num_classes=len(trained.classes), **trained.options)
    load_tensors(module, file, trained, averaged=averaged)
    return LoadedModel(module.eval().to(device), trained, file)


def check_size(file: Path, trained: TrainedModel) -> None:
    """Raise ValueError if a file is too small for its model, before that takes memory."""
    try:
        with torch.device("meta"):
            model = build_model(trained.name, num_classes=len(trained.classes), **trained.options)
    except TypeError as error:
        raise ValueError(f"{file}: options {shortened(trained.options)}: {error}") from error
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    if size > 8 * file.stat().st_size:  # in any precision
        raise ValueError(
            f"{file}: its weights are not those of {trained.name} with options "
            f"{shortened(trained.options)}, which take {size:,} bytes; give a file of vcycle train"
        )


def find_checkpoint(path: str | Path, *, best: bool = False, averaged: bool = True) -> Path:
    """The file of a model: ``path`` itself, or the checkpoint in a run folder or one for the hub.

    With ``averaged`` False it is one that has the weights of the last step too.

    Raises ValueError if there is none, or ``best`` is asked of a file.
    """
    path = Path(path)
    if path.is_file():
        if best:
            raise ValueError(f"--best: {path} is one checkpoint; leave it out, or give its folder")
        return path
    if not path.exists():
        raise ValueError(f"{path}: no such run folder or checkpoint; give one of vcycle train")
    name = "best" if best else "checkpoint"
    names = [f"{name}.safetensors", f"{name}.pt"] if averaged else [f"{name}.pt"]
    if averaged and not best:
        names.append(HUB_WEIGHTS)
    for file in (path / each for each in names):
        if file.is_file():
            return file
    problem = "give a folder of vcycle train, after its first checkpoint"
    if best and (path / "checkpoint.pt").is_file():
        problem = "it has no validation yet; leave out --best"
    raise ValueError(f"run folder {path}: no {name}.pt in it; {problem}")
