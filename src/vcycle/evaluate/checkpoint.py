"""Reading a checkpoint of ``vcycle train``, and what it says of the model in it.

In: a file, or a run folder. Out: a plain dictionary of tensors and numbers; the TrainedModel, which
is all that predicting takes beside the weights. ``vcycle.train.checkpoint`` writes both.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from vcycle.config.run import RunConfig
from vcycle.data.batch import MEAN, STD
from vcycle.data.manifest import Manifest

FORMAT = 2


@dataclass(frozen=True)
class TrainedModel:
    """What a network is, how its clips are made, and what its scores mean.

    Args:
        name, options: of ``build_model``.
        classes: of the scores, in order.
        multi_label: a video may show several classes: scores are for a sigmoid, not a softmax.
        shape: T x H x W of a clip, as text.
        stride, frame_rate, segments: which frames, as in ``vcycle.config.run.Data``.
        short_side: least and largest short side in pixels that a video was resized to in training.
        mean, std: of the pixels in [0, 1], subtracted and divided by.
        steps: optimizer steps that the weights have had.
    """

    name: str
    options: dict[str, Any]
    classes: tuple[str, ...]
    multi_label: bool
    shape: str
    stride: int
    frame_rate: float | None
    segments: bool
    short_side: tuple[int, int]
    mean: float
    std: float
    steps: int

    @classmethod
    def of_run(cls, config: RunConfig, manifest: Manifest, *, steps: int) -> TrainedModel:
        """What a run trains."""
        return cls(
            name=config.model.name,
            options=config.model.options,
            classes=manifest.classes,
            multi_label=manifest.multi_label,
            shape=str(config.baseline.shape),
            stride=config.data.stride,
            frame_rate=config.data.frame_rate,
            segments=config.data.segments,
            short_side=config.data.short_side,
            mean=MEAN,
            std=STD,
            steps=steps,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainedModel:
        """From what ``to_dict`` gave, be it through JSON."""
        known = {each.name: values[each.name] for each in fields(cls)}
        for name in ("classes", "short_side"):
            known[name] = tuple(known[name])
        return cls(**known)


def read_trained_model(path: Path) -> TrainedModel:
    """Of a checkpoint, or of the ``.safetensors`` beside it, whose tensors are not read.

    Raises ValueError if the file is neither.
    """
    if path.suffix != ".safetensors":
        return TrainedModel.from_dict(load_checkpoint(path)["trained"])
    try:
        with safe_open(path, framework="pt") as file:
            return TrainedModel.from_dict(json.loads(file.metadata()["vcycle"]))
    except Exception as error:  # safetensors has an error of its own for each way to be damaged
        raise ValueError(
            f"weights {path}: not written by vcycle train; give a file of a run folder"
        ) from error


def load_checkpoint(path: Path, *, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint. Code inside it never runs. Raises ValueError if the file is none."""
    check_intact(path)
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "unreadable"
        raise ValueError(
            f"checkpoint {path}: it is damaged or unsafe ({reason}); give another"
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(
            f"checkpoint {path}: not of this version of vcycle train; train again, or install the "
            f"version that wrote it"
        )
    return state


def weights_of(state: dict[str, Any], *, averaged: bool = True) -> dict[str, Any]:
    """The model's tensors in a checkpoint: those that were validated.

    With ``averaged`` False they are those of its last step, also of a run that averages weights.
    """
    ema = state.get("ema") if averaged else None
    weights: dict[str, Any] = state["model"] if ema is None else ema["average"]
    return weights


def check_intact(path: Path) -> None:
    """Raise ValueError unless every part of a checkpoint's file has the checksum written with it.

    ``torch.load`` does not look at them.
    """
    if not path.is_file():
        raise ValueError(f"checkpoint {path}: no such file; give a run folder that holds one")
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"checkpoint {path}: it is damaged ({error})") from None
    if bad is not None:
        raise ValueError(f"checkpoint {path}: it is damaged ({bad} has another checksum)")
