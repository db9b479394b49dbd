"""Reading a checkpoint of ``vcycle train``, and its weights file, which its content tells.

In: a file. Out: a plain dictionary of tensors and numbers, or the TrainedModel that it holds.
``vcycle.train.checkpoint`` writes both.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from vcycle.data.atomic import naming
from vcycle.evaluate.trained_model import TrainedModel
from vcycle.models.checkpoint_files import is_compressed, is_safetensors
from vcycle.models.pickled import load_pickled
from vcycle.models.weights import check_kind
from vcycle.schedule.messages import shortened

FORMAT = 2
_GIVE_ANOTHER = "give another file of a run folder, such as one in its checkpoints/"
_EXTRA_STATE = "vcycle_extra_state"
_DAMAGED = (SafetensorError, ValueError, LookupError, TypeError, RecursionError)
"""What reading a safetensors file and the JSON in it raises."""


def read_trained_model(path: Path) -> TrainedModel:
    """Of a checkpoint, or of the safetensors beside it, whose tensors are not read.

    Raises ValueError if the file is neither.
    """
    if path.suffix.lower() in (".onnx", ".pt2"):
        raise ValueError(f"weights {path}: an export, made for other programs; {_GIVE_ANOTHER}")
    trained = find_trained_model(path)
    if trained is not None:
        return trained
    if not _is_weights(path):
        load_checkpoint(path)  # says what is wrong with it
    raise ValueError(f"weights {path}: not written by vcycle train; {_GIVE_ANOTHER}")


def find_trained_model(path: Path) -> TrainedModel | None:
    """As ``read_trained_model``, but None if another program wrote the file, or none that can be
    read: ``vcycle.models.load_weights`` takes the former and says what is wrong with the latter.
    """
    if not _is_weights(path):
        _check_stored(path)
        try:
            state = load_pickled(path, mmap=True)
        except Exception:  # what torch may raise for a file that it did not write is not said
            return None
        if not isinstance(state, dict) or not {"format", "trained"} <= state.keys():
            return None
        _check_format(state, path)
        try:
            return TrainedModel.from_dict(state["trained"])
        except ValueError as error:
            raise damaged(path, error) from error
    with _opened(path) as file:
        metadata = file.metadata() or {}
        return (
            TrainedModel.from_dict(json.loads(metadata["vcycle"])) if "vcycle" in metadata else None
        )


def _is_weights(path: Path) -> bool:
    with naming(path):
        return is_safetensors(path)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file. Raises ValueError if it is damaged, OSError if it cannot be read."""
    try:
        with naming(path), safe_open(path, framework="pt") as file:
            yield file
    except _DAMAGED as error:
        raise damaged(path, error) from error


def load_tensors(
    module: nn.Module, file: Path, trained: TrainedModel, *, averaged: bool = True
) -> None:
    """Load the weights of a file of ``vcycle train`` into the module that it is of.

    With ``averaged`` False they are those of the last step, also of a run that averages weights.

    Raises ValueError if the file is damaged, or its tensors are not those of the module, or of
    another kind of numbers.
    """
    is_weights = _is_weights(file)
    if is_weights and not averaged:
        raise ValueError(f"{file}: it has the validated weights alone; give the .pt file beside it")
    if is_weights:
        state = _read_weights(file, module, trained)
    else:
        state = weights_of(load_checkpoint(file), averaged=averaged)
    for name, place in module.state_dict().items():
        value = state.get(name)
        if isinstance(place, Tensor) and isinstance(value, Tensor):
            check_kind(file, name, value, name, place)
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
        state = load_pickled(path)
    except Exception as error:  # of torch's reader, for a file that it did not write
        raise damaged(path, error, "damaged or unsafe") from None
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
    if type(state["format"]) is not int or state["format"] != FORMAT:
        raise ValueError(
            f"checkpoint {path}: not of this version of vcycle train; train again, or install the "
            f"version that wrote it"
        )
    ema, weights = state.get("ema"), [state.get("model")]
    if ema is not None:
        weights.append(ema.get("average") if isinstance(ema, dict) else None)
    if not all(isinstance(each, dict) for each in weights):
        raise damaged(path, "it has no weights")
    return state


def check_loads(path: Path) -> int:
    """The steps that a checkpoint has had; its tensors are not read.

    Raises ValueError if torch cannot read the file, which minds more of it than ``check_intact``.
    """
    try:
        _check_stored(path)
        state = load_pickled(path, mmap=True)
        return int(_check_format(state, path)["next_step"])
    except Exception as error:  # of torch's reader, for a file that it did not write
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        raise damaged(path, error) from None


def damaged(path: Path, why: object, what: str = "damaged") -> ValueError:
    """What to raise of a file, with the reason and what to do."""
    reason = shortened(why, 100) or "unreadable"
    kind = "weights" if path.suffix.lower() == ".safetensors" else "checkpoint"
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
        raise damaged(path, error) from None
    if bad is not None:
        raise damaged(path, f"{bad} has another checksum")
