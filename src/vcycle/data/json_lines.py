"""JSON lines: a file of rows that grows while a run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_rows(path: Path, *, skips_damaged: bool = False) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; a last line that a crash cut short is left out.

    Raises ValueError if another is no row, unless these are skipped.
    """
    rows = []
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row, problem = json.loads(line), "no row"
        except (ValueError, RecursionError) as error:
            row, problem = None, str(error)
            if number == len(lines):
                continue
        if isinstance(row, dict):
            rows.append(row)
        elif not skips_damaged:
            raise ValueError(
                f"{path}: line {number} is damaged ({problem}); restore the file, or take the line "
                f"out"
            )
    return rows
