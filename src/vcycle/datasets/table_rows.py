"""The rows of a table of videos: a CSV, JSON lines or Parquet file, checked cell by cell.

A file goes in, a ``ListedRow`` for each video comes out. Columns: ``path``, ``uri`` or
``file_name`` (as in Hugging Face's ``metadata.csv``); ``label``, or ``labels`` separated by
semicolons; and optionally ``split``, ``group`` (what stays on one side of a split, such as a
person), ``start`` and ``end`` (of the part of the video that the row is about, in seconds).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vcycle.data.manifest import check_class, check_path
from vcycle.data.tables import check_line, parse_lines, parse_number, parse_table, placed
from vcycle.datasets.listing import local_path, split_name, whole
from vcycle.schedule.messages import quoted

TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet")
_ALIASES = {"start_seconds": "start", "end_seconds": "end"}
"""Columns as manifests and predictions call them."""
_PATHS = ("path", "uri", "file_name")
COLUMNS = (*_PATHS, "label", "labels", "split", "group", "start", "end")
_FIX = "correct it"
_MOST_ROWS = 20_000_000
_FEW_ROWS = 1000
"""Of Parquet, decoded at a time."""
_MOST_SIZE = 4 * 10**9
"""Of its columns, in characters: of so many rows 200 each."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class ListedRow:
    """A row of a table; ``labels`` are names."""

    path: str
    labels: tuple[str, ...]
    split: str
    group: str
    start_seconds: float
    end_seconds: float


def read_rows(table: Path, folder: Path) -> tuple[list[ListedRow], list[str]]:
    """The rows of a table, and the names of its columns that are not read."""
    others: dict[str, None] = {}

    def parse(row: Row) -> ListedRow:
        columns = {name: _column(name) for name in row}
        known = {columns[name]: value for name, value in row.items()}
        used = _used(known)
        for column, count in Counter(columns.values()).items():
            if count > 1 and column in used:
                raise ValueError(f"{count} columns are {column}; leave one")
        others.update(dict.fromkeys(name for name in known if name and name not in used))
        return _listed(known, folder)

    suffix = table.suffix.lower()
    if suffix == ".csv":
        return parse_table(table, (), parse, fix=_FIX), list(others)
    if suffix == ".jsonl":
        return parse_lines(table, lambda line: parse(_object(line)), fix=_FIX), list(others)
    if suffix == ".parquet":
        return _parse_parquet(table, parse), list(others)
    raise ValueError(f"{table}: is not a table; give one of {', '.join(TABLE_SUFFIXES)}")


def _parse_parquet(table: Path, parse: Callable[[Row], ListedRow]) -> list[ListedRow]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(
            f"{table}: Parquet needs pyarrow; install it with `pip install vcycle[parquet]`"
        ) from None
    if not table.is_file():
        raise ValueError(f"{table}: not found; {_FIX}")
    try:
        with parquet.ParquetFile(table) as file:
            if file.metadata.num_rows > _MOST_ROWS:
                raise ValueError(
                    f"{table}: it has {file.metadata.num_rows:,} rows; give a table of "
                    f"{_MOST_ROWS:,} at most"
                )
            return _parse_batches(file, parse, table)
    except ArrowException as error:
        raise ValueError(f"{table}: is not Parquet ({error}); {_FIX}") from None


def _parse_batches(file: Any, parse: Callable[[Row], ListedRow], table: Path) -> list[ListedRow]:
    """The rows of a ``ParquetFile``, of which a small one may stand for very much."""
    names = file.schema_arrow.names
    known = [name for name in names if _column(name) in COLUMNS] or names[:1]
    found: list[ListedRow] = []
    size = 0
    for batch in file.iter_batches(batch_size=_FEW_ROWS, columns=known):
        for row in batch.to_pylist():
            size += _size(row)
            if size > _MOST_SIZE:
                raise ValueError(
                    f"{table}: its columns hold more than {_MOST_SIZE:,} characters; give a table "
                    f"of paths and labels"
                )
            with placed(f"{table} row {len(found) + 1}", _FIX):
                found.append(parse({**dict.fromkeys(names), **row}))
    return found


def _size(value: object) -> int:
    """The characters of a value and those in it, and at least one."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return 1 + sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else 1


def _column(name: str) -> str:
    """What a column is, whatever its spelling."""
    plain = name.strip().lower()
    return _ALIASES.get(plain, plain)


def names_files(table: Path) -> bool:
    """Whether a table has Hugging Face's column ``file_name``."""
    if table.suffix == ".parquet":
        return True
    with table.open(encoding="utf-8-sig", errors="replace") as lines:
        return re.search(r"\bfile_name\b", lines.readline(), re.IGNORECASE) is not None


def _object(line: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg})") from None
    except RecursionError:
        raise ValueError("is nested too deeply; give an object of plain values") from None
    if not isinstance(row, dict):
        raise ValueError("is not an object that describes a video")
    return row


def _used(row: Row) -> set[str]:
    """The columns that are read: of several names for a path, or for labels, the first."""
    labels = "labels" if "labels" in row else "label"
    return {_path_column(row) or "", labels, "split", "group", "start", "end"}


def _path_column(row: Row) -> str | None:
    return next((name for name in _PATHS if name in row), None)


def _listed(row: Row, folder: Path) -> ListedRow:
    column = _path_column(row)
    if column is None:
        raise ValueError(
            f"no column {', '.join(_PATHS[:-1])} or {_PATHS[-1]}; it has {_names(row)}"
        )
    text = _text(row, column)
    if not text:
        raise ValueError(f"no {column}")
    path = local_path(text, folder)
    check_path(path)
    start, end = (_seconds(row, name) for name in ("start", "end"))
    if end and end <= start:
        raise ValueError(f"end {end}: is not after start {start}")
    split = split_name(_text(row, "split"))
    return ListedRow(path, _labels(row), split, _text(row, "group"), start, end)


def _labels(row: Row) -> tuple[str, ...]:
    if "labels" in row:
        value = row["labels"]
        names = value if isinstance(value, list) else _text(row, "labels").split(";")
        names = [whole(name) for name in names]
        if not all(isinstance(name, str | int) and not isinstance(name, bool) for name in names):
            raise ValueError(f"labels {value!r:.60}: give names or numbers of classes")
    elif "label" in row:
        names = [_text(row, "label")]
        if not names[0]:
            raise ValueError("no label")
    else:
        raise ValueError(f"no column label or labels; it has {_names(row)}")
    labels = tuple(dict.fromkeys(str(name).strip() for name in names if str(name).strip()))
    for name in labels:
        check_class(name)
    return labels


def _text(row: Row, column: str) -> str:
    """A cell as text on one line; empty without one."""
    value = row.get(column)
    if isinstance(value, list | dict):
        fix = "; several labels of a video are the column labels" if column == "label" else ""
        raise ValueError(f"{column} {value!r:.60}: give one value{fix}")
    is_missing = value is None or value != value  # as pandas marks it
    text = "" if is_missing else str(whole(value)).strip()
    check_line(text, column)
    return text


def _seconds(row: Row, column: str) -> float:
    text = _text(row, column)
    return parse_number(text, column) if text else 0.0


def _names(row: Row) -> str:
    names = ", ".join(quoted(str(name)) for name in row)
    is_one = len(row) == 1 and any(mark in str(*row) for mark in ";\t|")
    return f"{names}; separate columns by commas" if is_one else names
