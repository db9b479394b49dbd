"""Readers of the annotations that public datasets publish: one function a dataset.

The annotation files and the folder of videos go in, a ``Listing`` comes out. No video is opened.
The functions raise ValueError, naming file and line, if a file is not as published.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vcycle.data.tables import (
    parse_items,
    parse_lines,
    parse_number,
    parse_object,
    parse_table,
    parse_whole_number,
    word,
)
from vcycle.datasets.folders import is_hidden, plain_name, videos_under
from vcycle.datasets.listing import (
    Entry,
    Listing,
    Missing,
    dataset_folder,
    each_once,
    is_there,
    make_listing,
    split_name,
)
from vcycle.schedule.messages import counted, quoted

_HMDB51_SPLITS = {"0": "", "1": "train", "2": "val"}


def list_kinetics(root: str | os.PathLike[str], *tables: str | os.PathLike[str]) -> Listing:
    """DeepMind's CSVs (label, youtube_id, time_start, time_end, split), of any edition.

    Files lie at any depth of ``root``, named ``id_start_end`` with six-digit seconds, as the usual
    downloaders do, or ``id``: of whole videos the part that is listed is taken. Raises ValueError
    if a list has no labels, as some editions' test lists have none.
    """
    top = dataset_folder(root)
    fix = "give DeepMind's CSV files that have labels, as published"
    columns = ("label", "youtube_id", "split")
    listed = [
        row for table in tables for row in parse_table(table, columns, _kinetics_row, fix=fix)
    ]
    rows, notes = each_once(listed)
    classes = tuple(sorted({row.label for row in rows}))
    numbers = {label: i for i, label in enumerate(classes)}
    files: dict[str, Path] = {}
    others = [p for p in videos_under(top) if files.setdefault(p.stem, p) != p]
    found: list[Entry | Missing] = []
    for row in rows:
        labels = (numbers[row.label],)
        if segment := files.get(row.segment):
            found.append(Entry(plain_name(segment, top), labels, row.split))
        elif whole := files.get(row.name):
            part = Entry(
                plain_name(whole, top),
                labels,
                row.split,
                start_seconds=row.start,
                end_seconds=row.end,
                may_be_cut=True,
            )
            found.append(part)
        else:
            found.append((row.segment, row.split))
    listing = make_listing(top, classes, found)
    if others:
        left_out = (
            f"{counted(len(others), 'file')} of a name that another has left out, such as "
            f"{plain_name(others[0], top)} for {plain_name(files[others[0].stem], top)}"
        )
        notes = (*notes, left_out)
    return replace(listing, notes=notes)


class _KineticsRow(NamedTuple):
    """``segment`` names the file of that part of the video ``name``, in seconds; 0 if unknown."""

    label: str
    name: str
    segment: str
    split: str
    start: float = 0.0
    end: float = 0.0


def _kinetics_row(row: Mapping[str, str]) -> _KineticsRow:
    label, name, split = (word(row, key) for key in ("label", "youtube_id", "split"))
    texts = row.get("time_start", ""), row.get("time_end", "")
    if not all(texts):
        return _KineticsRow(label, name, name, split_name(split))
    start, end = parse_number(texts[0], "time_start"), parse_number(texts[1], "time_end")
    if end <= start:
        raise ValueError(f"time_end {end}: is not after time_start {start}")
    segment = f"{name}_{int(start):06d}_{int(end):06d}"
    return _KineticsRow(label, name, segment, split_name(split), start, end)


def list_something(
    root: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str],
    train: str | os.PathLike[str],
    val: str | os.PathLike[str],
) -> Listing:
    """Something-Something V2's JSON files; videos ``id.webm``, or folders ``id`` of frames.

    The test list has no labels.
    """
    top = dataset_folder(root)
    fix = "give the dataset's labels, train and validation JSON files, as published"
    numbers = parse_object(labels, _class_numbers, fix=fix)

    def parse(item: Mapping[str, Any], split: str) -> Entry | Missing:
        template = word(item, "template").replace("[", "").replace("]", "")
        if template not in numbers:
            raise ValueError(f"template {quoted(template)} is not in {labels}")
        name = word(item, "id")
        path = _named(top, name)
        return Entry(path, (numbers[template],), split) if path else (name, split)

    found = [
        each
        for split, file in (("train", train), ("val", val))
        for each in parse_items(file, partial(parse, split=split), fix=fix)
    ]
    return make_listing(top, tuple(sorted(numbers, key=numbers.__getitem__)), found)


def _class_numbers(names: Mapping[str, Any]) -> dict[str, int]:
    numbers = {name: parse_whole_number(str(value), "label") for name, value in names.items()}
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise ValueError(f"does not number its {len(numbers)} classes from 0")
    return numbers


def list_charades(
    root: str | os.PathLike[str],
    *,
    classes: str | os.PathLike[str],
    train: str | os.PathLike[str],
    val: str | os.PathLike[str],
) -> Listing:
    """Charades' CSVs with time-stamped actions; videos ``id.mp4``, or folders at 24 frames/s."""
    top = dataset_folder(root)
    fix = "give Charades' class list, train and test CSV files, as published"
    names = dict(parse_lines(classes, _two_words, fix=fix))
    numbers = {code: i for i, code in enumerate(sorted(names))}

    def parse(row: Mapping[str, str], split: str) -> Entry | Missing:
        actions = [_action(text, numbers) for text in row["actions"].split(";") if text.strip()]
        name = word(row, "id")
        path = _named(top, name)
        labels = tuple(label for label, _ in actions)
        spans = tuple(span for _, span in actions)
        return Entry(path, labels, split, spans=spans) if path else (name, split)

    found = [
        each
        for split, file in (("train", train), ("val", val))
        for each in parse_table(file, ("id", "actions"), partial(parse, split=split), fix=fix)
    ]
    ordered = tuple(names[code] for code in sorted(names))
    return make_listing(top, ordered, found, frame_rate=24.0)


def _action(text: str, numbers: Mapping[str, int]) -> tuple[int, tuple[float, float]]:
    """The label and seconds of an action such as ``c092 11.90 21.20``, in their order."""
    words = text.split()
    if len(words) != 3:
        raise ValueError(f"action {quoted(text)} is not a code, its start and its end")
    code, start, end = words
    if code not in numbers:
        raise ValueError(f"action {quoted(text)} is of no class in the class list")
    first, last = sorted((parse_number(start, "start"), parse_number(end, "end")))
    return numbers[code], (first, last)


def list_ucf101(
    root: str | os.PathLike[str], splits: str | os.PathLike[str], *, split: int = 1
) -> Listing:
    """UCF101: ``classInd.txt``, ``trainlist01.txt`` and ``testlist01.txt``; test becomes val."""
    top, folder = dataset_folder(root), dataset_folder(splits)
    fix = "give the folder of UCF101's split files, as published"
    names = dict.fromkeys(
        name for _, name in parse_lines(folder / "classInd.txt", _two_words, fix=fix)
    )
    numbers = {name: i for i, name in enumerate(names)}

    def parse(line: str, name: str) -> Entry | Missing:
        path = line.split()[0]
        label = path.split("/")[0]
        if label not in numbers:
            raise ValueError(f"{quoted(path)} is of no class in classInd.txt")
        there = _published(top, path)
        return (path, name) if there is None else Entry(there, (numbers[label],), name)

    found = [
        each
        for name, kind in (("train", "train"), ("val", "test"))
        for each in parse_lines(
            folder / f"{kind}list{split:02d}.txt", partial(parse, name=name), fix=fix
        )
    ]
    return make_listing(top, tuple(numbers), found)


def list_hmdb51(
    root: str | os.PathLike[str], splits: str | os.PathLike[str], *, split: int = 1
) -> Listing:
    """HMDB51: a file for each class; 1 is train, 2 is test (our val), 0 is neither."""
    top, folder = dataset_folder(root), dataset_folder(splits)
    fix = "give the folder of HMDB51's splits, as published"
    ending = f"_test_split{split}.txt"
    files = sorted(file for file in folder.glob(f"*{ending}") if not is_hidden(file.name))
    if not files:
        raise ValueError(f"{folder}: holds no *{ending}; {fix}")
    classes = tuple(file.name[: -len(ending)] for file in files)

    def parse(line: str, label: int) -> Entry | Missing | None:
        name, use = _two_words(line)
        if use not in _HMDB51_SPLITS:
            raise ValueError(f"{quoted(name)} is followed by {quoted(use)} instead of 0, 1 or 2")
        path, chosen = f"{classes[label]}/{name}", _HMDB51_SPLITS[use]
        if not chosen:
            return None
        there = _published(top, path)
        return (path, chosen) if there is None else Entry(there, (label,), chosen)

    found = [
        each
        for label, file in enumerate(files)
        for each in parse_lines(file, partial(parse, label=label), fix=fix)
        if each
    ]
    return make_listing(top, classes, found)


def _named(top: Path, name: str) -> str | None:
    """The file ``name`` of any video suffix, or the folder ``name``, under ``top``."""
    for suffix in (".webm", ".mp4", "", ".mkv", ".avi"):
        if is_there(f"{name}{suffix}", top):
            return f"{name}{suffix}"
    return None


def _published(top: Path, path: str) -> str | None:
    """The file of that path, or what it may have been rewritten as."""
    return path if is_there(path, top) else _named(top, str(PurePosixPath(path).with_suffix("")))


def _two_words(line: str) -> tuple[str, str]:
    """The first word of a line, and the rest."""
    words = line.split(maxsplit=1)
    if len(words) != 2:
        raise ValueError(f"{quoted(line.strip())} is one word instead of two")
    return words[0], words[1].strip()
