"""A table of videos that people wrote: CSV, JSON lines or Parquet, with a row for each video.

The table goes in, a ``Listing`` comes out: its classes, and a split for each video. ``table_rows``
reads the rows, and says which columns they may have.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vcycle.data.manifest import MANIFEST_FILES, locate
from vcycle.data.metadata import Location
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
)
from vcycle.datasets.splits import Splitting
from vcycle.datasets.table_rows import (
    COLUMNS,
    TABLE_SUFFIXES,
    ListedRow,
    names_files,
    read_rows,
)
from vcycle.schedule.messages import counted, quoted

_NAMED = 4
"""Of the columns that are not read, the most that a note names."""


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
    rows, others = read_rows(file, top)
    return _listing(top, rows, others, Splitting(val_share, group_pattern), where=str(file))


def metadata_tables(top: Path) -> list[Path]:
    """Hugging Face's ``metadata`` tables in a folder or in its folders of splits."""
    folders = [top] + [each for each in sorted(top.iterdir()) if each.name.lower() in SPLIT_NAMES]
    files = [folder / f"metadata{suffix}" for folder in folders for suffix in TABLE_SUFFIXES]
    return [file for file in files if file.is_file() and names_files(file)]


def list_metadata(top: Path, tables: Sequence[Path], splitting: Splitting) -> Listing:
    """The videos of ``metadata`` tables, whose ``file_name`` is relative to the table's folder."""
    rows: list[ListedRow] = []
    others: dict[str, None] = {}
    for table in tables:
        split = "" if table.parent == top else SPLIT_NAMES[table.parent.name.lower()]
        listed, names = read_rows(table, table.parent)
        others |= dict.fromkeys(names)
        for row in listed:
            path = local_path(locate(table.parent.absolute(), Location(row.path)).uri, top)
            rows.append(replace(row, path=path, split=row.split or split))
    return _listing(top, rows, list(others), splitting, where=str(tables[0]))


def _listing(
    top: Path,
    rows: Sequence[ListedRow],
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
    return (f"{what} not read: {names}; those with a meaning are {', '.join(COLUMNS)}",)


def _notes_on_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """That a name may have been meant as two."""
    joined = [name for name in classes if ";" in name]
    if not joined:
        return ()
    return (f"class {quoted(joined[0])} is one class; for several, call the column labels",)


def _groups(rows: Sequence[ListedRow]) -> list[str]:
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


def _once(rows: Sequence[ListedRow]) -> tuple[list[ListedRow], tuple[str, ...]]:
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
