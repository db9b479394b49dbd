"""JSON of run folders: files of one object, and of rows, which grow while a run goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vcycle.data.tables import parse_object

RESTORE = "restore it, or remove it"
"""What to do about a damaged file."""
_MOST = 2**62
"""Of any number: what is computed from two is finite."""


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file's one object. Raises ValueError if it is none."""
    return parse_object(path, dict, fix=RESTORE)


def read_rows(
    path: Path, *, numbers: Iterable[str] = (), skips_damaged: bool = False
) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; a last line that a crash cut short is left out.

    Raises ValueError if another is no row, or one of its ``numbers`` is none, unless such rows are
    skipped.
    """
    rows = []
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            row, problem = None, str(error)
            if number == len(lines):
                continue
        else:
            problem = wrong_number(row, numbers) if isinstance(row, dict) else "no row"
        if not problem:
            rows.append(row)
        elif not skips_damaged:
            raise ValueError(
                f"{path}: line {number} is damaged ({problem}); restore the file, or take the line "
                f"out"
            )
    return rows


def wrong_number(row: Mapping[str, Any], names: Iterable[str]) -> str:
    """The first of these values that is no number from 0 to 2**62; empty if all are."""
    for name in names:
        value = row.get(name)
        if not (isinstance(value, int | float) and 0 <= value <= _MOST):
            return f"{name} {value!r:.40}"
    return ""
