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
from pickletools import genops, stackslice
from typing import IO, Any

import torch

from vcycle.schedule.messages import quoted

MOST_BYTES = 2**26
"""Of a pickle, which is a file of torch without its tensors' numbers."""

MOST_VALUES = 2**22
"""In a pickle of fewer bytes: what is written once and held many times counts as often as that."""

_NAMES = {
    *("collections.OrderedDict", "collections.Counter", "torch.Size", "torch.device"),
    *(f"{module}.{name}" for module in ("__builtin__", "builtins") for name in ("set", "complex")),
    *(f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "tensor_v3")),
    *("torch._utils._rebuild_parameter", "torch.storage.UntypedStorage"),
    *(f"torch.{name}" for name in vars(torch) if name.endswith("Storage")),
    *(str(each) for each in vars(torch).values() if isinstance(each, torch.dtype)),
}
"""Of dense tensors and plain values. torch accepts more: some take memory without limit."""

_FILLS = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD")
"""With the values above it on the stack, what lies below them; others make a new value."""


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


def _pickles(file: IO[bytes]) -> Iterator[io.BytesIO]:
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


def _check(file: io.BytesIO) -> None:
    """Go through one pickle, with sizes in place of values."""
    stack: list[_Value] = []
    marks: list[int] = []
    memo: dict[int, _Value] = {}
    total, most = 0, max(MOST_VALUES, len(file.getbuffer()))
    argument: Any
    for opcode, argument, _ in genops(file):
        name, taken = opcode.name, opcode.stack_before
        if name == "GLOBAL" and argument.replace(" ", ".") not in _NAMES:
            raise ValueError(
                f"it holds more than dense tensors and plain values: {quoted(argument)}"
            )
        if name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
            total += stack[-1].size
        elif opcode.stack_after:
            fills = name in _FILLS
            start = marks.pop() if stackslice in taken else len(stack) - len(taken) + fills
            held = stack[start:]
            del stack[start:]
            for each in held:
                each.is_held = True
            if not fills:
                stack.append(_Value(0))
            elif stack[-1].is_held:  # whose holder's size would be wrong
                raise ValueError("it fills a list or dictionary that another holds already")
            stack[-1].size += sum(each.size for each in held) + (not fills)
            total += 0 if fills else stack[-1].size
        if total > most:
            raise ValueError(f"its lists and tuples stand for over {most:,} values")


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
