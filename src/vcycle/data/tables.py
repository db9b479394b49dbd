"""Read text, CSV and JSON files that people and datasets write, and write CSV.

A file and a function that parses one row go in, the parsed rows come out. A mistake is one
ValueError: file and line, the mistake, and ``fix``, what to do.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from vcycle.data.atomic import write_atomic
from vcycle.schedule.messages import quoted, shortened

T = TypeVar("T")
CONTROL = re.compile("[\x00-\x08\n\r\x0e-\x1f\x7f-\x84\x86-\x9f\u202d\u202e]")
"""Characters that break a line of a file, begin what steers a terminal, or turn letters round.

Those that join letters or mark a direction are not among them: names in many scripts need them.
"""

MOST = 2**31
"""Of frames, pixels, seconds and frames a second: no video has more."""


def without_control(text: str) -> str:
    """Text of others for a terminal: ``\\x1b`` for what would steer it."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@contextmanager
def placed(where: str, fix: str) -> Iterator[None]:
    """Put the place before a ValueError raised inside, and what to do behind it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}; {fix}") from None


def read_text(path: str | os.PathLike[str], *, fix: str) -> str:
    """A file's UTF-8 text, with ``\\n`` as the end of every line."""
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"{file}: not found; {fix}")
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: byte {error.start} is not UTF-8 text; {fix}") from None


def parse_lines(path: str | os.PathLike[str], parse: Callable[[str], T], *, fix: str) -> list[T]:
    """Parse each line that is not blank. Only a newline ends a line."""
    found = []
    for count, line in enumerate(read_text(path, fix=fix).split("\n"), start=1):
        if line.strip():
            with placed(f"{path} line {count}", fix):
                found.append(parse(line))
    return found


def parse_table(
    path: str | os.PathLike[str],
    columns: tuple[str, ...],
    parse: Callable[[Mapping[str, str]], T],
    *,
    fix: str,
) -> list[T]:
    """Parse each row of a CSV file, given as column -> value.

    Raises ValueError if one of ``columns`` is missing, a name is there twice, or a row has more or
    fewer values.
    """
    table = csv.reader(io.StringIO(read_text(path, fix=fix), newline=""))
    found = []
    try:
        names = next(table, [])
        lacking = [name for name in columns if name not in names]
        if lacking:
            raise ValueError(f"no column {', '.join(lacking)}")
        for name, count in Counter(names).items():
            if count > 1 and name:
                raise ValueError(f"{count} columns are {shortened(name, 60)}; leave one")
        for values in table:
            if len(values) not in (0, len(names)):
                raise ValueError(f"has {len(values)} values for {len(names)} columns")
            if values:
                found.append(parse(dict(zip(names, values, strict=True))))
    except (ValueError, csv.Error) as error:
        where = f"{path} line {max(table.line_num, 1)}"
        hint = ", is a quotation mark left open?" if isinstance(error, csv.Error) else ""
        raise ValueError(f"{where}: {error}{hint}; {fix}") from None
    return found


def list_cell(names: Iterable[str]) -> str:
    """Names as one cell: ``a;b``, those that hold a ``;`` in quotes."""
    cell = io.StringIO()
    csv.writer(cell, delimiter=";", lineterminator="").writerow(names)
    return cell.getvalue()


def names_of_cell(cell: str) -> list[str]:
    """The names that ``list_cell`` joined."""
    return next(csv.reader([cell], delimiter=";", strict=True), [])


def write_table(
    path: str | os.PathLike[str], columns: Iterable[str], rows: Iterable[Iterable[object]]
) -> None:
    """Write a CSV file, atomically: the names of its columns, then its rows."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    write_atomic(Path(path), text.getvalue())


def parse_items(
    path: str | os.PathLike[str], parse: Callable[[Mapping[str, Any]], T], *, fix: str
) -> list[T]:
    """Parse each object of a JSON file's list."""
    items = _json(path, fix)
    if not isinstance(items, list):
        raise ValueError(f"{path}: is not a list of videos; {fix}")
    found = []
    for count, item in enumerate(items, start=1):
        with placed(f"{path} item {count}", fix):
            if not isinstance(item, dict):
                raise ValueError("is not an object that describes a video")
            found.append(parse(item))
    return found


def parse_object(
    path: str | os.PathLike[str], parse: Callable[[Mapping[str, Any]], T], *, fix: str
) -> T:
    """Parse a JSON file's one object."""
    found = _json(path, fix)
    with placed(str(path), fix):
        if not isinstance(found, dict):
            raise ValueError("is not an object of names and numbers")
        return parse(found)


def word(row: Mapping[str, Any], name: str) -> str:
    """A required value: text on one line."""
    value = row.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} {quoted(str(value))} is not text")
    if not value.strip():
        raise ValueError(f"no {name}")
    check_line(value, name)
    return value


def check_line(text: str, name: str) -> None:
    """Raise ValueError if ``text`` cannot be one line of a UTF-8 file, or steers a terminal."""
    if CONTROL.search(text):
        raise ValueError(f"{name} {quoted(text)} has a line break or another control character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} {quoted(text)} is not UTF-8 text") from None


def parse_number(text: str, name: str) -> float:
    """A number from 0 to ``MOST``."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST:
        raise ValueError(f"{name} {quoted(text)} is not a number from 0 to {MOST}")
    return value


def parse_whole_number(text: str, name: str) -> int:
    """A whole number of at least 0."""
    if not text.strip().isdecimal():
        raise ValueError(f"{name} {quoted(text)} is not a whole number of at least 0")
    return int(text)


def _json(path: str | os.PathLike[str], fix: str) -> Any:
    text = read_text(path, fix=fix)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path} line {error.lineno}"
        raise ValueError(f"{where}: is not JSON ({error.msg}); {fix}") from None
    except (ValueError, RecursionError) as error:  # numbers and lists that Python does not take
        raise ValueError(f"{path}: is not JSON of plain values ({error}); {fix}") from None
