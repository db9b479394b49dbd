"""What a program gives to the types of a schedule, checked where it is given.

In: values of any kind. Out: the same as these types keep them, or one line that names the argument
and what to give. A configuration from a file is checked before, field by field.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real
from typing import Any

_MOST = 2**53
"""Up to which floats hold every whole number."""


def whole_number(name: str, value: Any, *, give: str = "a whole number of at least 1") -> int:
    """``value`` as an int, numpy's too; raises ValueError unless it is one of at least 1.

    Or if floats could not hold it.
    """
    plain = _plain(value)
    try:
        whole = 0 if isinstance(plain, bool) else operator.index(plain)
    except TypeError:
        whole = 0
    if whole < 1:
        raise ValueError(f"{name} {value!r}: give {give}")
    if whole > _MOST:
        raise ValueError(f"{name} {str(value)[:20]}...: give a number of at most {_MOST}")
    return whole


def truth(name: str, value: Any) -> bool:
    """``value``, numpy's too, as a bool; raises TypeError for anything else, such as a word."""
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise TypeError(f"{name} {value!r}: give True or False")
    return plain


def as_index(name: str, value: Any) -> int:
    """``value`` as an int, numpy's and torch's too; raises TypeError unless it is whole."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} {value!r}: give a whole number") from None


def keep(value: object, **fields: Any) -> None:
    """Set fields of a frozen dataclass while it is made; nothing changes afterwards."""
    for name, each in fields.items():
        object.__setattr__(value, name, each)


def check_type(name: str, value: Any, kind: type, *, example: str) -> None:
    """Raise TypeError unless ``value`` is a ``kind``, one of the library's types."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} {value!r}: give a vcycle.{kind.__name__}, such as {example}")


def as_tuple(name: str, value: Any, *, example: str) -> tuple[Any, ...]:
    """A list or array, or some in one, as tuples of plain numbers.

    Raises TypeError if ``value`` is neither, or holds what is no number.
    """
    plain = _plain(value)
    if not isinstance(plain, tuple) or not _is_of_numbers(plain):
        raise TypeError(f"{name} {value!r}: give a tuple, such as {example}")
    return plain


def number(name: str, value: Any) -> float:
    """``value``, one of numpy's as a plain one; raises TypeError unless it is a number."""
    if isinstance(value, tuple) or not _is_of_numbers(value):
        raise TypeError(f"{name} {value!r}: give a number")
    plain: float = _plain(value)
    return plain


def _plain(value: Any) -> Any:
    if getattr(value, "ndim", None) == 0:  # numpy's and torch's
        return value.item()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return tuple(_plain(each) for each in value)
    return value


def _is_of_numbers(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_of_numbers, value))
    return isinstance(value, Real) and not isinstance(value, bool)


def nearest(name: object, known: Iterable[str]) -> str:
    """A question for the known name that was meant; empty if none is near.

    It may be the last word of a dotted name.
    """
    names = list(known)
    last = str(name).lstrip("-").replace("-", "_")
    found = [each for each in names if each.endswith(f".{last}")][:3]
    found = found or get_close_matches(str(name), names, n=1, cutoff=0.7)
    return f"; did you mean {' or '.join(found)}?" if found else ""
