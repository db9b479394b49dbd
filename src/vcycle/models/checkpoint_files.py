"""Read the tensors of a checkpoint file, and only those.

In: a local ``.pth``, ``.pyth``, ``.pt`` or ``.safetensors`` file from any source. Out: a flat state
dict on the CPU, and the keys of everything else in the file. No code in the file runs. The format
is detected from the content, not from the name.
"""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from vcycle.models.entries import KINETICS_PAGE
from vcycle.models.pickled import load_pickled
from vcycle.models.wrapped import without_wrappers
from vcycle.schedule.messages import shortened

MAX_BYTES = 8 * 2**30
"""Larger files are refused. The limit is over 30 times the size of the largest model here."""

PUBLISHED = (
    "weights are published at github.com/facebookresearch/SlowFast (MODEL_ZOO.md), "
    f"{KINETICS_PAGE}, "
    "pytorch.org/vision (ResNet-50, ResNet-101) and huggingface.co/timm"
)

USUAL_DTYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.complex64, torch.complex128),
}

_CONTAINERS = ("model_state", "state_dict", "model_state_dict", "model")
"""Keys under which training programs store the state dict; PySlowFast uses the first."""


def read_state_dict(path: str | Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The state dict in the file at ``path``, and the keys of entries that are no tensors.

    Prefixes of wrappers are removed (``without_wrappers``). Nothing is downloaded.

    Raises ValueError if ``path`` is a URL, or if the file is missing, too large, truncated,
    compressed, or holds anything but tensors and plain values. The message is one line that names
    the file.
    """
    if "://" in str(path):
        raise ValueError(f"{path}: a URL; give a local file: download it first ({PUBLISHED})")
    path = Path(path)
    if not path.is_file():
        problem = "not a file" if path.exists() else "no such file"
        of_run = path / "best.safetensors"
        raise ValueError(f"{path}: {problem}; {f'give {of_run}' if of_run.exists() else PUBLISHED}")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: larger than {MAX_BYTES} bytes; give a file of a model's weights")
    if is_compressed(path):
        raise ValueError(
            f"{path}: refused, a compressed archive, a damaged one, or not one of torch's; use "
            f"torch.save"
        )
    try:
        content = _read(path)
    except Exception as error:
        reason = shortened(error, 120) or type(error).__name__
        if "weights_only" in str(error) or "Weights only" in str(error):
            reason = "it holds pickled objects, which can run code when loaded"
        raise ValueError(
            f"{path}: refused, not an intact file of tensors ({reason}); "
            "save the state dict alone, for example as safetensors"
        ) from error
    return _flat(path, content)


def _read(path: Path) -> Any:
    if is_safetensors(path):
        return load_file(path)
    with path.open("rb") as file:
        start = file.read(2)
    # A zip archive or a pickle, as torch.save writes them.
    if not start.startswith((b"PK", b"\x80")):
        raise ValueError("neither torch.save nor safetensors wrote it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old formats, which are still read
        # A mapped archive is read only as needed, and its records cannot exceed the file.
        return load_pickled(path, mmap=start.startswith(b"PK"))


def is_safetensors(path: Path) -> bool:
    """Whether a file begins as safetensors do: the length of a header, and the header's brace."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def is_compressed(path: Path) -> bool:
    """Whether a file is an archive with compressed records, or could hide them.

    torch writes none, and they can expand a thousandfold. Its reader may find another directory of
    the records than Python's, where an archive has bytes that are of no record or directory.
    """
    with path.open("rb") as file:
        is_zip = file.read(4) == b"PK\3\4"
    try:
        with zipfile.ZipFile(path) as archive:
            records, comment = archive.infolist(), archive.comment
    except Exception:  # no archive; or one that Python cannot read, and torch's reader may
        return is_zip
    starts = min((each.header_offset for each in records), default=0) == 0
    stored = all(each.compress_type == zipfile.ZIP_STORED for each in records)
    return bool(comment) or not (starts and stored and _ends_with_its_directory(path))


def _ends_with_its_directory(path: Path) -> bool:
    """Whether the end of an archive names the directory just before it, if it is a large one's.

    Python reads that one whatever is named. The end has 22 bytes, what names it 20, it itself 56.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 42))
        end = file.read()
    is_large = len(end) == 42 and end.startswith(b"PK\6\7")
    return not is_large or int.from_bytes(end[8:16], "little") == size - 98


def _flat(path: Path, content: Any) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a {type(content).__name__}; save a state dict")
    content = _validated(content)
    for name in _CONTAINERS:
        if isinstance(content.get(name), dict):
            content = content[name]
            break
    state: dict[str, Tensor] = {}
    others: list[str] = []
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            others.append(str(key))
            continue
        if value.dtype not in USUAL_DTYPES:
            raise ValueError(f"{path}: {shown(key)} is no tensor of a usual dtype; save it as one")
        name = without_wrappers(key)
        if name in state:
            raise ValueError(f"{path}: holds {shown(name)} twice, under two prefixes; save it once")
        state[name] = value
    if not state:
        keys = ", ".join(shown(key) for key in list(content)[:3]) or "nothing"
        raise ValueError(
            f"{path}: holds no state dict (its keys: {keys}); save the state dict "
            f"alone; {PUBLISHED}"
        )
    return state, tuple(others)


def _validated(content: dict[Any, Any]) -> dict[Any, Any]:
    """The averaged weights of a run of vcycle train, which are those it validated; else all."""
    ema, weights = content.get("ema"), content.get("model")
    average = ema.get("average") if isinstance(ema, dict) else None
    if isinstance(average, dict) and isinstance(weights, dict) and average.keys() == weights.keys():
        return average
    return content


def shown(key: object) -> str:
    """A key as it is shown in an error message: quoted, at most 100 characters."""
    text = repr(key)
    return text if len(text) <= 100 else text[:97] + "..."
