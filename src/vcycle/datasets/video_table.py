"""A table of videos that people wrote: CSV, JSON lines or Parquet, with a row for each video.

The table goes in, a ``Listing`` comes out. Columns: ``path``, ``uri`` or ``file_name`` (as in
Hugging Face's ``metadata.csv``); ``label``, or ``labels`` separated by semicolons; and optionally
``split``, ``group`` (what stays on one side of a split, such as a person), ``start`` and ``end``
(of the part of the video that the row is about, in seconds).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vcycle.data.manifest import MANIFEST_FILES, check_class, check_path
from vcycle.data.tables import check_line, parse_lines, parse_number, parse_table, placed
from vcycle.datasets.listing import (
    SPLIT_NAMES,
    Entry,
    Listing,
    Missing,
    dataset_folder,
    each_once,
    is_there,
    local_path,
    make_listing,
    notes_on_labels,
    sorted_classes,
    split_name,
)
from vcycle.datasets.splits import Splitting
from vcycle.schedule.messages import counted, quoted

TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet")
_ALIASES = {"start_seconds": "start", "end_seconds": "end"}
"""Columns as manifests and predictions call them."""
_PATHS = ("path", "uri", "file_name")
_COLUMNS = (*_PATHS, "label", "labels", "split", "group", "start", "end")
_NAMED = 4
"""Of the columns that are not read, the most that a note names."""
_FIX = "correct it"
_MOST_ROWS = 20_000_000
_FEW_ROWS = 1000
"""Of Parquet, decoded at a time."""
_MOST_SIZE = 4 * 10**9
"""Of its columns, in characters: of so many rows 200 each."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Listed:
    """A row of a table; ``labels`` are names."""

    path: str
    labels: tuple[str, ...]
    split: str
    group: str
    start_seconds: float
    end_seconds: float


def list_table(
    table: str | os.PathLike[str],
    *,
    videos: str | os.PathLike[str] | None = None,
    val_share: float = 0.1,
    group_pattern: str | None = None,
) -> Listing:
    """The videos of a table. Paths are relative to ``videos``, the table's own folder by default.

    A column ``split`` is kept as it is. Without it ``val_share`` of each class is for validation,
    and what has the same ``group``, or path, stays on one side. Videos on this machine that do not
    exist are missing. Raises ValueError, naming file and line, if the table cannot be read.
    """
    file = Path(table)
    if file.name in MANIFEST_FILES:
        raise ValueError(f"{file}: would be replaced by the manifest; rename it")
    top = dataset_folder(videos if videos is not None else file.parent)
    rows, others = _read(file, top)
    return _listing(top, rows, others, Splitting(val_share, group_pattern), where=str(file))


def metadata_tables(top: Path) -> list[Path]:
    """Hugging Face's ``metadata`` tables in a folder or in its folders of splits."""
    folders = [top] + [each for each in sorted(top.iterdir()) if each.name.lower() in SPLIT_NAMES]
    files = [folder / f"metadata{suffix}" for folder in folders for suffix in TABLE_SUFFIXES]
    return [file for file in files if file.is_file() and _names_files(file)]


def list_metadata(top: Path, tables: Sequence[Path], splitting: Splitting) -> Listing:
    """The videos of ``metadata`` tables, whose ``file_name`` is relative to the table's folder."""
    rows: list[_Listed] = []
    others: dict[str, None] = {}
    for table in tables:
        split = "" if table.parent == top else SPLIT_NAMES[table.parent.name.lower()]
        listed, names = _read(table, table.parent)
        others |= dict.fromkeys(names)
        for row in listed:
            path = row.path
            if "://" not in path:
                path = (table.parent.relative_to(top) / path).as_posix()
            rows.append(replace(row, path=path, split=row.split or split))
    return _listing(top, rows, list(others), splitting, where=str(tables[0]))


def _listing(
    top: Path,
    rows: Sequence[_Listed],
    others: Sequence[str],
    splitting: Splitting,
    *,
    where: str,
) -> Listing:
    """The listing of the rows of tables that have ``others``, columns that are not read, too."""
    if not rows:
        raise ValueError(f"{where}: lists no video; give each one a row")
    rows, notes = _once(rows)
    classes = sorted_classes(name for row in rows for name in row.labels)
    numbers = {name: label for label, name in enumerate(classes)}
    labels = [tuple(numbers[name] for name in row.labels) for row in rows]
    notes += (*_notes_on_columns(others), *_notes_on_classes(classes))
    notes += notes_on_labels([row.path for row in rows], [row.labels for row in rows])
    paths, groups = [row.path for row in rows], _groups(rows)
    given = [row.split for row in rows]
    if any(given) and not all(given):
        raise ValueError(
            f"{where}: {paths[given.index('')]} has no split and others have; give each one a split"
        )
    why = "the table has splits"
    splits, more = splitting.with_val(given, paths, labels, groups, reason=why)
    notes += more
    unused = why if any(given) and all(group is None for _, group in splits) else ""
    if splitting.group_pattern is not None:
        unused = unused or "--group-pattern is given"
    if unused and any(row.group for row in rows):
        notes += (f"column group is not used: {unused}",)
    found: list[Entry | Missing] = []
    for row, row_labels, (split, group) in zip(rows, labels, splits, strict=True):
        entry = Entry(
            row.path,
            row_labels,
            split,
            start_seconds=row.start_seconds,
            end_seconds=row.end_seconds,
            group=group,
        )
        found.append(entry if is_there(row.path, top) else (row.path, split))
    return replace(make_listing(top, classes, found), notes=notes)


def _notes_on_columns(others: Sequence[str]) -> tuple[str, ...]:
    """Which columns are not read; a misspelt one is among them."""
    if not others:
        return ()
    names = ", ".join(map(quoted, others[:_NAMED])) + (", ..." if len(others) > _NAMED else "")
    what = "column" if len(others) == 1 else "columns"
    return (f"{what} not read: {names}; those with a meaning are {', '.join(_COLUMNS)}",)


def _notes_on_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """That a name may have been meant as two."""
    joined = [name for name in classes if ";" in name]
    if not joined:
        return ()
    return (f"class {quoted(joined[0])} is one class; for several, call the column labels",)


def _groups(rows: Sequence[_Listed]) -> list[str]:
    """The group of each row, or its video's name; groups that share a video are one."""
    first: dict[str, str] = {}  # group of a video
    other: dict[str, str] = {}  # group -> the one that it belongs to

    def whole(group: str) -> str:
        while (up := other.get(group)) is not None:
            other[group] = other.get(up, up)  # shorter for the next one
            group = up
        return group

    named = [row.group or f"/{row.path}" for row in rows]
    for row, name in zip(rows, named, strict=True):
        group, known = whole(name), whole(first.setdefault(row.path, name))
        if group != known:
            other[group] = known
    return [whole(name) for name in named]


def _once(rows: Sequence[_Listed]) -> tuple[list[_Listed], tuple[str, ...]]:
    """Each row once, and notes on those that were there again, or name another class."""
    kept, notes = each_once(rows)
    parts = Counter((row.path, row.start_seconds, row.end_seconds) for row in kept)
    again = [path for (path, *_), number in parts.items() if number > 1]
    if again:
        several = (
            f"{counted(len(again), 'video')} in several rows that differ, such as {again[0]}: give "
            f"each one row, with one split, and semicolons between several labels"
        )
        notes = (*notes, several)
    return kept, notes


def _read(table: Path, folder: Path) -> tuple[list[_Listed], list[str]]:
    """The rows of a table, and the names of its columns that are not read."""
    others: dict[str, None] = {}

    def parse(row: Row) -> _Listed:
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


def _parse_parquet(table: Path, parse: Callable[[Row], _Listed]) -> list[_Listed]:
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


def _parse_batches(file: Any, parse: Callable[[Row], _Listed], table: Path) -> list[_Listed]:
    """The rows of a ``ParquetFile``, of which a small one may stand for very much."""
    names = file.schema_arrow.names
    known = [name for name in names if _column(name) in _COLUMNS] or names[:1]
    found: list[_Listed] = []
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


def _names_files(table: Path) -> bool:
    """Whether a table has Hugging Face's column ``file_name``."""
    if table.suffix == ".parquet":
        return True
    with table.open(encoding="utf-8-sig", errors="replace") as lines:
        return "file_name" in lines.readline()


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


def _listed(row: Row, folder: Path) -> _Listed:
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
    return _Listed(path, _labels(row), split, _text(row, "group"), start, end)


def _labels(row: Row) -> tuple[str, ...]:
    if "labels" in row:
        value = row["labels"]
        names = value if isinstance(value, list) else _text(row, "labels").split(";")
        names = [_whole(name) for name in names]
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
    text = "" if is_missing else str(_whole(value)).strip()
    check_line(text, column)
    return text


def _whole(value: object) -> object:
    """A whole number as one: beside a missing cell pandas and Parquet keep it as 3.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _seconds(row: Row, column: str) -> float:
    text = _text(row, column)
    return parse_number(text, column) if text else 0.0


def _names(row: Row) -> str:
    names = ", ".join(quoted(str(name)) for name in row)
    is_one = len(row) == 1 and any(mark in names for mark in ";\t|")
    return f"{names}; separate columns by commas" if is_one else names
