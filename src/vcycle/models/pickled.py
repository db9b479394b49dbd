"""Read what ``torch.save`` wrote, after a look at what its pickle would have torch do.

In: a file that torch wrote, or that says so. Out: its content, tensors on the CPU and plain values.
torch's ``weights_only`` runs no code of the file's choice, but a file of some hundred bytes can
have it make a byte array of any size, or hash for ever a tuple that holds a tuple twice, and so on.
"""

from __future__ import annotations

import io
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from pickletools import genops
from typing import IO, Any

import torch

from vcycle.schedule.messages import quoted

MOST_BYTES = 2**26
"""Of a pickle, which is a file of torch without its tensors' numbers."""

MOST_VALUES = 2**22
"""In a pickle, where what is written once and held many times counts as often as it is held."""

_NAMES = {
    *("collections.OrderedDict", "collections.Counter", "torch.Size", "torch.device"),
    *(f"{module}.{name}" for module in ("__builtin__", "builtins") for name in ("set", "complex")),
    *(f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "tensor_v3")),
    *("torch._utils._rebuild_parameter", "torch.storage.UntypedStorage"),
    *(f"torch.{name}" for name in vars(torch) if name.endswith("Storage")),
    *(str(each) for each in vars(torch).values() if isinstance(each, torch.dtype)),
}
"""Of dense tensors and plain values. torch accepts more: some take memory without limit."""

_MAKES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "REDUCE": 2, "NEWOBJ": 2, "BINPERSID": 1}
_FILLS = {"APPEND": 1, "SETITEM": 2, "BUILD": 1}
"""Of how many values on the stack a new one is made, and with how many that below is filled."""


@dataclass(slots=True)
class _Value:
    size: int = 1
    is_held: bool = False


def load_pickled(source: Path | IO[bytes], *, mmap: bool = False) -> Any:
    """The content of a file. No code inside it runs. With ``mmap`` its tensors are not read yet.

    Raises ValueError if it holds more than dense tensors and plain values, or too many of them, and
    whatever torch does for a file that it did not write.
    """
    with source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
        for pickle in _pickles(file):
            _check(pickle)
        file.seek(0)
        content = torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    _restore_methods(content)
    return content


def _pickles(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The pickles in a file, each open where it begins, that torch would read."""
    is_zip = file.read(4) == b"PK\3\4"
    file.seek(0)
    if is_zip:
        with zipfile.ZipFile(file) as archive:
            for record in archive.infolist():
                if record.orig_filename.lower().endswith(".pkl"):
                    with archive.open(record) as opened:
                        yield io.BytesIO(opened.read(MOST_BYTES))
    else:  # of torch before 1.6: a number, a version, the machine's, the content, and names
        start = io.BytesIO(file.read(MOST_BYTES))
        yield from [start] * 5


def _check(file: IO[bytes]) -> None:
    """Go through one pickle, with sizes in place of values."""
    stack: list[_Value] = []
    marks: list[int] = []
    memo: dict[int, _Value] = {}
    total = 0
    argument: Any
    for opcode, argument, _ in genops(file):
        name = opcode.name
        if name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
            continue
        if name == "MARK":
            marks.append(len(stack))
            continue
        if name == "PROTO":
            continue
        if name == "GLOBAL" and argument.replace(" ", ".") not in _NAMES:
            raise ValueError(f"it holds pickled objects, such as {quoted(argument)}")
        if name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name in _MAKES or name == "TUPLE":
            size = _take(stack, _MAKES[name] if name in _MAKES else len(stack) - marks.pop())
            stack.append(_Value(1 + size))
        elif name in _FILLS or name in ("APPENDS", "SETITEMS"):
            size = _take(stack, _FILLS[name] if name in _FILLS else len(stack) - marks.pop())
            if stack[-1].is_held:  # whose holder's size would be wrong
                raise ValueError("it fills a list or dictionary that another holds already")
            stack[-1].size += size
            continue
        elif name != "STOP":  # a plain value, an empty container, or what torch refuses
            stack.append(_Value())
        total += stack[-1].size
        if total > MOST_VALUES:
            raise ValueError(f"its lists and tuples stand for over {MOST_VALUES:,} values")


def _take(stack: list[_Value], count: int) -> int:
    """Take so many values off the stack into another; returns their size."""
    size = 0
    for _ in range(count):
        value = stack.pop()
        value.is_held = True
        size += value.size
    return size


def _restore_methods(content: Any) -> None:
    """Remove attributes of dictionaries, such as ``items``: a file may set any.

    ``_metadata`` is torch's own, of state dicts.
    """
    left = [content]
    while left:
        each = left.pop()
        if isinstance(each, OrderedDict):
            for name in vars(each).keys() - {"_metadata"}:
                del vars(each)[name]
            left += vars(each).values()
        if isinstance(each, dict):
            left += dict.values(each)
        elif isinstance(each, list | tuple):
            left += each
