"""Reading a checkpoint of ``vcycle train``, and what it says of the model in it; its weights file.

In: a file. Out: a plain dictionary of tensors and numbers; the TrainedModel, which
is all that predicting takes beside the weights. ``vcycle.train.checkpoint`` writes both.
"""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from vcycle.config.fields import typed
from vcycle.config.run import RunConfig
from vcycle.data.atomic import naming
from vcycle.data.batch import MEAN, STD
from vcycle.data.manifest import Manifest
from vcycle.data.tables import check_line
from vcycle.models.checkpoint_files import is_compressed
from vcycle.schedule.messages import shortened
from vcycle.schedule.shape import Shape, ShapeRule

FORMAT = 2
_GIVE_ANOTHER = "give another file of a run folder, such as one in its checkpoints/"
_EXTRA_STATE = "vcycle_extra_state"
_MOST_PIXELS = 2**31  # of a clip
_DAMAGED = (SafetensorError, ValueError, LookupError, TypeError, RecursionError)
"""What reading a safetensors file and the JSON in it raises."""


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
        rule: the shapes that the run kept to; any, in files of versions that did not keep it.
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
    rule: ShapeRule = ShapeRule()

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
            rule=config.multigrid.rule,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainedModel:
        """From what ``to_dict`` gave, be it through JSON.

        Raises ValueError if a value is missing or of another type.
        """
        known: dict[str, Any] = {}
        hints = get_type_hints(cls)
        for field in fields(cls):
            if isinstance(values, dict) and field.name in values:
                known[field.name] = typed(hints[field.name], values[field.name], field.name)
            elif field.default is MISSING:
                raise ValueError(f"no {field.name} in its metadata")
        if not 0 < known["std"] < math.inf or not math.isfinite(known["mean"]):
            raise ValueError(f"mean {known['mean']}, std {known['std']}: no pixels have these")
        rate, (low, high) = known["frame_rate"], known["short_side"]
        if known["stride"] < 1 or not low <= high or not (rate is None or 0 < rate < math.inf):
            raise ValueError(f"stride {known['stride']}, short side {low} to {high}, rate {rate}")
        if not known["classes"]:
            raise ValueError("no classes")
        for name in known["classes"]:
            check_line(name, "class")
        shape = Shape.parse(known["shape"])
        if shape.num_pixels > _MOST_PIXELS:
            raise ValueError(f"shape {known['shape']}: too large for a clip")
        known.get("rule", ShapeRule()).scale(shape, frames=1, side=1)  # as every plan does
        return cls(**known)


def read_trained_model(path: Path) -> TrainedModel:
    """Of a checkpoint, or of the ``.safetensors`` beside it, whose tensors are not read.

    Raises ValueError if the file is neither.
    """
    if path.suffix in (".onnx", ".pt2"):
        raise ValueError(f"weights {path}: an export, made for other programs; {_GIVE_ANOTHER}")
    trained = find_trained_model(path)
    if trained is not None:
        return trained
    if path.suffix != ".safetensors":
        load_checkpoint(path)  # says what is wrong with it
    raise ValueError(f"weights {path}: not written by vcycle train; {_GIVE_ANOTHER}")


def find_trained_model(path: Path) -> TrainedModel | None:
    """As ``read_trained_model``, but None if another program wrote the file, or none that can be
    read: ``vcycle.models.load_weights`` takes the former and says what is wrong with the latter.
    """
    if path.suffix != ".safetensors":
        _check_stored(path)
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception:  # what torch may raise for a file that it did not write is not said
            return None
        if not isinstance(state, dict) or not {"format", "trained"} <= state.keys():
            return None
        _check_format(state, path)
        try:
            return TrainedModel.from_dict(state["trained"])
        except ValueError as error:
            raise _damaged(path, error) from error
    with _opened(path) as file:
        metadata = file.metadata() or {}
        return (
            TrainedModel.from_dict(json.loads(metadata["vcycle"])) if "vcycle" in metadata else None
        )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file. Raises ValueError if it is damaged, OSError if it cannot be read."""
    try:
        with naming(path), safe_open(path, framework="pt") as file:
            yield file
    except _DAMAGED as error:
        raise _damaged(path, error) from error


def load_tensors(
    module: nn.Module, file: Path, trained: TrainedModel, *, averaged: bool = True
) -> None:
    """Load the weights of a file of ``vcycle train`` into the module that it is of.

    With ``averaged`` False they are those of the last step, also of a run that averages weights.

    Raises ValueError if the file is damaged, or its tensors are not those of the module.
    """
    is_weights = file.suffix == ".safetensors"
    if is_weights and not averaged:
        raise ValueError(f"{file}: it has the validated weights alone; give the .pt file beside it")
    if is_weights:
        state = _read_weights(file, module, trained)
    else:
        state = weights_of(load_checkpoint(file), averaged=averaged)
    try:
        module.load_state_dict(state)
    except Exception as error:  # whatever the set_extra_state of a model of one's own may raise
        said = str(error) if isinstance(error, RuntimeError) else repr(error)
        reason = " ".join("".join(said.splitlines()[:2][-1:]).split())
        raise ValueError(
            f"{file}: its weights are not those of {trained.name} with {len(trained.classes)} "
            f"classes ({reason[:200]}); give a file of vcycle train"
        ) from error


def _read_weights(file: Path, module: nn.Module, trained: TrainedModel) -> dict[str, Any]:
    """The state in a safetensors file; what it cannot hold is of the checkpoint beside it.

    Raises ValueError if neither has it, the two are of other steps, or the file is damaged.
    """
    with _opened(file) as opened:
        state: dict[str, Any] = {k: opened.get_tensor(k) for k in opened.keys()}  # noqa: SIM118
        extra = json.loads((opened.metadata() or {}).get(_EXTRA_STATE, "{}"))
        if not isinstance(extra, dict) or not extra.keys().isdisjoint(state):
            raise ValueError("its extra state is no dictionary, or names tensors")
    state |= extra
    expected = module.state_dict().items()
    lost = [k for k, value in expected if not isinstance(value, Tensor) and k not in state]
    if not lost:
        return state
    checkpoint, needs = file.with_suffix(".pt"), f"it lacks {lost[0]!r} of {trained.name}"
    if not checkpoint.is_file():
        raise ValueError(f"{file}: {needs}; give the run folder, or its .pt file")
    whole = weights_of(load_checkpoint(checkpoint))
    beside = find_trained_model(checkpoint)
    if beside is None or beside.steps != trained.steps or not whole.keys() >= set(lost):
        raise ValueError(
            f"{file}: {needs}, and {checkpoint.name} beside it is not of its {trained.steps} "
            f"steps; give the .pt file that was written with it"
        )
    return state | {name: whole[name] for name in lost}


def without_json(state: Mapping[str, Any]) -> list[str]:
    """The names of what a safetensors file cannot hold: no tensors, and no plain values of JSON."""

    def is_kept(value: object) -> bool:
        try:
            return isinstance(value, Tensor) or bool(json.loads(json.dumps(value)) == value)
        except (TypeError, ValueError):
            return False

    return [name for name, value in state.items() if not is_kept(value)]


def weights_bytes(state: Mapping[str, Any], trained: Mapping[str, Any]) -> bytes:
    """A safetensors file of the tensors in a module's state, with its TrainedModel as metadata.

    So is the extra state that a model of one's own keeps, but for what ``without_json`` names.
    """
    lost = without_json(state)
    extra = {k: v for k, v in state.items() if not isinstance(v, Tensor) and k not in lost}
    tensors = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
    metadata = {"format": "pt", "vcycle": json.dumps(trained)}
    if extra:
        metadata[_EXTRA_STATE] = json.dumps(extra)
    return save(tensors, metadata)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Code inside it never runs. Raises ValueError if the file is none."""
    check_intact(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise _damaged(path, error, "damaged or unsafe") from None
    return _check_format(state, path)


def weights_of(state: dict[str, Any], *, averaged: bool = True) -> dict[str, Any]:
    """The model's tensors in a checkpoint: those that were validated.

    With ``averaged`` False they are those of its last step, also of a run that averages weights.
    """
    ema = state.get("ema") if averaged else None
    weights: dict[str, Any] = state["model"] if ema is None else ema["average"]
    return weights


def _check_format(state: Any, path: Path) -> dict[str, Any]:
    if not isinstance(state, dict) or "format" not in state:
        raise ValueError(
            f"checkpoint {path}: not a checkpoint of vcycle train; if it holds weights, give it to "
            f"vcycle.load_weights(model, ...), or to `vcycle eval {path.name} --model MODEL`"
        )
    if state["format"] != FORMAT:
        raise ValueError(
            f"checkpoint {path}: not of this version of vcycle train; train again, or install the "
            f"version that wrote it"
        )
    ema, weights = state.get("ema"), [state.get("model")]
    if ema is not None:
        weights.append(ema.get("average") if isinstance(ema, dict) else None)
    if not all(isinstance(each, dict) for each in weights):
        raise _damaged(path, "it has no weights")
    return state


def check_loads(path: Path) -> int:
    """The steps that a checkpoint has had; its tensors are not read.

    Raises ValueError if torch cannot read the file, which minds more of it than ``check_intact``.
    """
    try:
        _check_stored(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return int(_check_format(state, path)["next_step"])
    except Exception as error:  # of torch's reader, for a file that it did not write
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        raise _damaged(path, error) from None


def _damaged(path: Path, why: object, what: str = "damaged") -> ValueError:
    reason = shortened(why, 100) or "unreadable"
    kind = "weights" if path.suffix == ".safetensors" else "checkpoint"
    return ValueError(f"{kind} {path}: it is {what} ({reason}); {_GIVE_ANOTHER}")


def _unreadable(path: Path, error: OSError) -> ValueError:
    reason = error.strerror or error
    return ValueError(f"checkpoint {path}: it cannot be read ({reason}); {_GIVE_ANOTHER}")


def _check_stored(path: Path) -> None:
    try:
        compressed = is_compressed(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if compressed:
        raise ValueError(
            f"checkpoint {path}: it is damaged, compressed, or no archive of torch's; "
            f"{_GIVE_ANOTHER}"
        )


def check_intact(path: Path) -> None:
    """Raise ValueError unless every part of a checkpoint's file has the checksum written with it.

    ``torch.load`` does not look at them.
    """
    if not path.is_file():
        raise ValueError(f"checkpoint {path}: no such file; give a run folder that holds one")
    _check_stored(path)  # before it is read, for what is compressed may be much longer
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except OSError as error:
        raise _unreadable(path, error) from None
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise _damaged(path, error) from None
    if bad is not None:
        raise _damaged(path, f"{bad} has another checksum")
