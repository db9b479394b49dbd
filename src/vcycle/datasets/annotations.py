"""What the public datasets' own files list: one function a dataset, each returning a Listing.

Nothing here opens a video. ``index_videos`` turns a Listing into a manifest. A mistake in a
dataset's file is a ValueError that names file and line.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vcycle.data.manifest import check_class, check_path
from vcycle.data.tables import (
    check_line,
    number,
    parse_items,
    parse_lines,
    parse_object,
    parse_table,
    placed,
    quoted,
    whole_number,
    word,
)
from vcycle.datasets.folders import plain_name, videos_under

_SPLIT_NAMES = {"train": "train", "val": "val", "validate": "val", "validation": "val"}
_SPLIT_NAMES |= {"test": "test", "training": "train", "valid": "val"}
_HMDB51_SPLITS = {"0": "", "1": "train", "2": "val"}
_Missing = tuple[str, str]  # name and split


@dataclass(frozen=True)
class Entry:
    """One listed video: its path under the listing's root, and what is known without opening it."""

    path: str
    labels: tuple[int, ...]
    split: str
    flip: bool = True
    spans: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        check_path(self.path)


@dataclass(frozen=True)
class Listing:
    """A dataset as its files describe it. ``missing`` was listed but is not under ``root``.

    ``frame_rate`` is that of videos kept as folders of pictures.
    """

    root: Path
    classes: tuple[str, ...]
    entries: tuple[Entry, ...]
    missing: tuple[_Missing, ...] = ()
    frame_rate: float = 30.0

    def __post_init__(self) -> None:
        with placed(str(self.root), "rename it"):
            for name in self.classes:
                check_class(name)


def list_folder(root: str | os.PathLike[str], *, val_share: float = 0.1) -> Listing:
    """A folder for each class, under ``train``, ``val`` and ``test`` folders if there are any.

    Without those, ``val_share`` of the videos, chosen by a hash of their names, is val.
    """
    if not 0 <= val_share <= 1:
        raise ValueError(f"val_share is {val_share}; use a share from 0 to 1")
    top = _directory(root)
    tops = _folders_in(top, top)
    splits = [(_SPLIT_NAMES[d.name.lower()], d) for d in tops if d.name.lower() in _SPLIT_NAMES]
    for other in tops if splits else ():
        if other.name.lower() not in _SPLIT_NAMES and videos_under(other):
            raise ValueError(
                f"{top}: holds {quoted(splits[0][1].name)}, a split, and {quoted(other.name)}, "
                f"which is none; put all classes under train, val and test folders, or none"
            )
    class_folders = [
        (split, folder, plain_name(folder, parent))
        for split, parent in splits or [("", top)]
        for folder in _folders_in(parent, top)
    ]
    classes = sorted({label for _, _, label in class_folders})
    entries = []
    for split, folder, label in class_folders:
        for path in videos_under(folder):
            name = plain_name(path, top)
            chosen = split or ("val" if _share(name) < val_share else "train")
            entries.append(Entry(name, (classes.index(label),), chosen))
    if not entries:
        raise ValueError(f"{top}: no folder in it holds a video; put each class in its own folder")
    return Listing(top, tuple(classes), tuple(entries))


def list_kinetics(root: str | os.PathLike[str], *tables: str | os.PathLike[str]) -> Listing:
    """DeepMind's CSVs (label, youtube_id, time_start, time_end, split), of any edition.

    Files may lie anywhere under ``root``, named ``id_start_end`` with six-digit seconds as the
    usual downloaders name them, or by ``id`` alone. Some editions' test lists have no labels;
    those are refused.
    """
    top = _directory(root)
    fix = "give DeepMind's CSV files that have labels, as published"
    columns = ("label", "youtube_id", "split")
    rows = [row for table in tables for row in parse_table(table, columns, _kinetics_row, fix=fix)]
    classes = tuple(sorted({label for label, _, _, _ in rows}))
    numbers = {label: i for i, label in enumerate(classes)}
    files = {path.stem: path for path in videos_under(top)}
    found: list[Entry | _Missing] = []
    for label, name, segment, split in rows:
        file = files.get(segment) or files.get(name)
        path = plain_name(file, top) if file else None
        found.append(Entry(path, (numbers[label],), split) if path else (segment, split))
    return _listing(top, classes, found)


def _kinetics_row(row: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Label, id, name of the segment's file, split."""
    name = segment = word(row, "youtube_id")
    start, end = row.get("time_start", ""), row.get("time_end", "")
    if start and end:
        times = int(number(start, "time_start")), int(number(end, "time_end"))
        segment = f"{name}_{times[0]:06d}_{times[1]:06d}"
    return word(row, "label"), name, segment, _split(word(row, "split"))


def list_something(
    root: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str],
    train: str | os.PathLike[str],
    val: str | os.PathLike[str],
) -> Listing:
    """Something-Something V2's JSON files; videos ``id.webm``, or folders ``id`` of pictures.

    No video may be mirrored when classes tell left from right. The test list has no labels.
    """
    top = _directory(root)
    fix = "give the dataset's labels, train and validation JSON files, as published"
    numbers = parse_object(labels, _class_numbers, fix=fix)
    flip = not any(side in name.lower() for name in numbers for side in ("left", "right"))

    def parse(item: Mapping[str, Any], split: str) -> Entry | _Missing:
        template = word(item, "template").replace("[", "").replace("]", "")
        if template not in numbers:
            raise ValueError(f"template {quoted(template)} is not in {labels}")
        name = word(item, "id")
        path = _named(top, name)
        return Entry(path, (numbers[template],), split, flip) if path else (name, split)

    found = [
        each
        for split, file in (("train", train), ("val", val))
        for each in parse_items(file, partial(parse, split=split), fix=fix)
    ]
    return _listing(top, tuple(sorted(numbers, key=numbers.__getitem__)), found)


def _class_numbers(names: Mapping[str, Any]) -> dict[str, int]:
    numbers = {name: whole_number(str(value), "label") for name, value in names.items()}
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise ValueError(f"does not number its {len(numbers)} classes from 0 on")
    return numbers


def list_charades(
    root: str | os.PathLike[str],
    *,
    classes: str | os.PathLike[str],
    train: str | os.PathLike[str],
    val: str | os.PathLike[str],
) -> Listing:
    """Charades' CSVs with time-stamped actions; videos ``id.mp4``, or folders at 24 frames/s."""
    top = _directory(root)
    fix = "give Charades' class list, train and test CSV files, as published"
    names = dict(parse_lines(classes, _two_words, fix=fix))
    numbers = {code: i for i, code in enumerate(sorted(names))}

    def parse(row: Mapping[str, str], split: str) -> Entry | _Missing:
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
    return _listing(top, ordered, found, frame_rate=24.0)


def _action(text: str, numbers: Mapping[str, int]) -> tuple[int, tuple[float, float]]:
    """The label and seconds of an action such as ``c092 11.90 21.20``."""
    words = text.split()
    if len(words) != 3:
        raise ValueError(f"action {quoted(text)} is not a code, its start and its end")
    code, start, end = words
    if code not in numbers:
        raise ValueError(f"action {quoted(text)} is of no class in the class list")
    return numbers[code], (number(start, "start"), number(end, "end"))


def list_ucf101(
    root: str | os.PathLike[str], splits: str | os.PathLike[str], *, split: int = 1
) -> Listing:
    """UCF101: ``classInd.txt``, ``trainlist01.txt`` and ``testlist01.txt``; test becomes val."""
    top, folder = _directory(root), _directory(splits)
    fix = "give the folder of UCF101's split files, as published"
    names = dict.fromkeys(
        name for _, name in parse_lines(folder / "classInd.txt", _two_words, fix=fix)
    )
    numbers = {name: i for i, name in enumerate(names)}

    def parse(line: str, name: str) -> Entry | _Missing:
        path = line.split()[0]
        label = path.split("/")[0]
        if label not in numbers:
            raise ValueError(f"{quoted(path)} is of no class in classInd.txt")
        entry = Entry(path, (numbers[label],), name)
        return entry if _is_there(top / path) else (path, name)

    found = [
        each
        for name, kind in (("train", "train"), ("val", "test"))
        for each in parse_lines(
            folder / f"{kind}list{split:02d}.txt", partial(parse, name=name), fix=fix
        )
    ]
    return _listing(top, tuple(numbers), found)


def list_hmdb51(
    root: str | os.PathLike[str], splits: str | os.PathLike[str], *, split: int = 1
) -> Listing:
    """HMDB51: a file for each class; 1 is train, 2 is test (our val), 0 is neither."""
    top, folder = _directory(root), _directory(splits)
    fix = "give the folder of HMDB51's splits, as published"
    ending = f"_test_split{split}.txt"
    files = sorted(folder.glob(f"*{ending}"))
    if not files:
        raise ValueError(f"{folder}: holds no *{ending}; {fix}")
    classes = tuple(file.name[: -len(ending)] for file in files)

    def parse(line: str, label: int) -> Entry | _Missing | None:
        name, use = _two_words(line)
        if use not in _HMDB51_SPLITS:
            raise ValueError(f"{quoted(name)} is followed by {quoted(use)} instead of 0, 1 or 2")
        path, chosen = f"{classes[label]}/{name}", _HMDB51_SPLITS[use]
        if not chosen:
            return None
        entry = Entry(path, (label,), chosen)
        return entry if _is_there(top / path) else (path, chosen)

    found = [
        each
        for label, file in enumerate(files)
        for each in parse_lines(file, partial(parse, label=label), fix=fix)
        if each
    ]
    return _listing(top, classes, found)


def _listing(
    top: Path,
    classes: tuple[str, ...],
    found: Sequence[Entry | _Missing],
    *,
    frame_rate: float = 30.0,
) -> Listing:
    entries = tuple(each for each in found if isinstance(each, Entry))
    missing = tuple(each for each in found if not isinstance(each, Entry))
    return Listing(top, classes, entries, missing, frame_rate)


def _directory(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such directory; give the folder that holds the dataset")
    with placed(str(folder), "rename it"):
        check_line(str(folder.absolute()), "its path")
    return folder


def _folders_in(parent: Path, top: Path) -> list[Path]:
    """The folders in a folder, without links that lead back up to ``top`` or above it."""
    real_top = top.resolve()
    return [
        folder
        for folder in sorted(parent.iterdir())
        if folder.is_dir() and not real_top.is_relative_to(folder.resolve())
    ]


def _named(top: Path, name: str) -> str | None:
    """The file ``name`` of any video suffix, or the folder ``name``, directly under ``top``."""
    for suffix in (".webm", ".mp4", "", ".mkv", ".avi"):
        if _is_there(top / f"{name}{suffix}"):
            return f"{name}{suffix}"
    return None


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a folder that may not be entered
        return False


def _two_words(line: str) -> tuple[str, str]:
    """The first word of a line, and the rest."""
    words = line.split(maxsplit=1)
    if len(words) != 2:
        raise ValueError(f"{quoted(line.strip())} is one word instead of two")
    return words[0], words[1].strip()


def _share(name: str) -> float:
    """A number in [0, 1) that only the name decides."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "big") / 2**48


def _split(name: str) -> str:
    return _SPLIT_NAMES.get(name.strip().lower(), name.strip())
