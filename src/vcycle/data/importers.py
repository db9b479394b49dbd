"""What the public datasets' own files list: one function a dataset, each returning a Listing.

Nothing here opens a video. ``index_videos`` turns a Listing into a manifest.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv"}
)
_SPLIT_NAMES = {"train": "train", "val": "val", "validate": "val", "validation": "val"}
_SPLIT_NAMES |= {"test": "test", "training": "train", "valid": "val"}
_PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})


@dataclass(frozen=True)
class Entry:
    """One listed video: its path under the listing's root, and what is known without opening it."""

    path: str
    labels: tuple[int, ...]
    split: str
    flip: bool = True
    spans: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Listing:
    """A dataset as its files describe it. ``missing`` was listed but is not under ``root``.

    ``frame_rate`` is that of videos kept as folders of pictures.
    """

    root: Path
    classes: tuple[str, ...]
    entries: tuple[Entry, ...]
    missing: tuple[tuple[str, str], ...] = ()  # (name, split)
    frame_rate: float = 30.0


def list_folder(root: str | os.PathLike[str], *, val_share: float = 0.1) -> Listing:
    """A folder for each class, under ``train``, ``val`` and ``test`` folders if there are any.

    Without those, ``val_share`` of the videos, chosen by a hash of their names, is val.
    """
    top = _directory(root)
    tops = [entry for entry in sorted(top.iterdir()) if entry.is_dir()]
    splits = [(_SPLIT_NAMES[d.name.lower()], d) for d in tops if d.name.lower() in _SPLIT_NAMES]
    class_folders = [
        (split, folder)
        for split, parent in splits or [("", top)]
        for folder in sorted(parent.iterdir())
        if folder.is_dir()
    ]
    classes = sorted({folder.name for _, folder in class_folders})
    entries = []
    for split, folder in class_folders:
        for path in _videos_under(folder):
            name = path.relative_to(top).as_posix()
            chosen = split or ("val" if _share(name) < val_share else "train")
            entries.append(Entry(name, (classes.index(folder.name),), chosen))
    if not entries:
        raise ValueError(f"{top}: no folder in it holds a video; put each class in its own folder")
    return Listing(top, tuple(classes), tuple(entries))


def list_kinetics(root: str | os.PathLike[str], *tables: str | os.PathLike[str]) -> Listing:
    """DeepMind's CSVs (label, youtube_id, time_start, time_end, split).

    Files may lie anywhere under ``root``, named ``id_start_end`` with six-digit seconds as the
    usual downloaders name them, or by ``id`` alone.
    """
    top = _directory(root)
    rows = [row for table in tables for row in _table(table, "label", "youtube_id", "split")]
    classes = sorted({row["label"] for row in rows})
    files = {path.stem: path for path in _videos_under(top)}
    entries, missing = [], []
    for row in rows:
        name, split = row["youtube_id"], _split(row["split"])
        start, end = row.get("time_start"), row.get("time_end")
        exact = f"{name}_{int(float(start)):06d}_{int(float(end)):06d}" if start and end else name
        found = files.get(exact) or files.get(name)
        if found is None:
            missing.append((exact, split))
        else:
            label = classes.index(row["label"])
            entries.append(Entry(found.relative_to(top).as_posix(), (label,), split))
    return Listing(top, tuple(classes), tuple(entries), tuple(missing))


def list_something(
    root: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str],
    train: str | os.PathLike[str],
    val: str | os.PathLike[str],
) -> Listing:
    """Something-Something V2's JSON files; videos ``id.webm``, or folders ``id`` of pictures.

    No video may be mirrored when classes tell left from right.
    """
    top = _directory(root)
    numbers = {name: int(number) for name, number in _json(labels).items()}
    classes = tuple(sorted(numbers, key=lambda name: numbers[name]))
    flip = not any(side in name.lower() for name in classes for side in ("left", "right"))
    entries, missing = [], []
    for split, file in (("train", train), ("val", val)):
        for item in _json(file):
            template = item["template"].replace("[", "").replace("]", "")
            if template not in numbers:
                raise ValueError(f"{file}: template {template!r} is not in {labels}")
            found = _named(top, item["id"])
            if found is None:
                missing.append((item["id"], split))
            else:
                entries.append(Entry(found, (numbers[template],), split, flip))
    return Listing(top, classes, tuple(entries), tuple(missing), frame_rate=30.0)


def list_charades(
    root: str | os.PathLike[str],
    *,
    classes: str | os.PathLike[str],
    train: str | os.PathLike[str],
    val: str | os.PathLike[str],
) -> Listing:
    """Charades' CSVs with time-stamped actions; videos ``id.mp4``, or folders at 24 frames/s."""
    top = _directory(root)
    lines = Path(classes).read_text(encoding="utf-8").splitlines()
    names = dict(line.split(maxsplit=1) for line in lines if line.strip())
    numbers = {code: i for i, code in enumerate(sorted(names))}
    entries, missing = [], []
    for split, file in (("train", train), ("val", val)):
        for row in _table(file, "id", "actions"):
            actions = [action.split() for action in row["actions"].split(";") if action.strip()]
            found = _named(top, row["id"])
            if found is None:
                missing.append((row["id"], split))
                continue
            labels = tuple(numbers[code] for code, _, _ in actions)
            spans = tuple((float(start), float(end)) for _, start, end in actions)
            entries.append(Entry(found, labels, split, spans=spans))
    ordered = tuple(names[code] for code in sorted(names))
    return Listing(top, ordered, tuple(entries), tuple(missing), frame_rate=24.0)


def list_ucf101(
    root: str | os.PathLike[str], splits: str | os.PathLike[str], *, split: int = 1
) -> Listing:
    """UCF101: ``classInd.txt``, ``trainlist01.txt`` and ``testlist01.txt``; test becomes val."""
    top, folder = _directory(root), _directory(splits)
    lines = (folder / "classInd.txt").read_text().split("\n")
    classes = tuple(line.split()[1] for line in lines if line.strip())
    entries, missing = [], []
    for name, file in (("train", f"trainlist{split:02d}.txt"), ("val", f"testlist{split:02d}.txt")):
        for line in (folder / file).read_text().splitlines():
            if not line.strip():
                continue
            path = line.split()[0]
            if (top / path).exists():
                entries.append(Entry(path, (classes.index(path.split("/")[0]),), name))
            else:
                missing.append((path, name))
    return Listing(top, classes, tuple(entries), tuple(missing))


def list_hmdb51(
    root: str | os.PathLike[str], splits: str | os.PathLike[str], *, split: int = 1
) -> Listing:
    """HMDB51: a file for each class; 1 is train, 2 is test (our val), 0 is neither."""
    top, folder = _directory(root), _directory(splits)
    ending = f"_test_split{split}.txt"
    files = sorted(folder.glob(f"*{ending}"))
    if not files:
        raise ValueError(f"{folder}: holds no *{ending}; give the folder of HMDB51's splits")
    classes = tuple(file.name[: -len(ending)] for file in files)
    entries, missing = [], []
    for label, file in enumerate(files):
        for line in file.read_text().splitlines():
            if not line.strip():
                continue
            name, number = line.split()
            if number not in ("1", "2"):
                continue
            path, chosen = f"{classes[label]}/{name}", "train" if number == "1" else "val"
            if (top / path).exists():
                entries.append(Entry(path, (label,), chosen))
            else:
                missing.append((path, chosen))
    return Listing(top, classes, tuple(entries), tuple(missing))


def _directory(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such directory; give the folder that holds the dataset")
    return folder


def _videos_under(folder: Path) -> list[Path]:
    """Video files and folders of pictures, at any depth, in the order of their names."""
    found = []
    for parent, folders, files in os.walk(folder, followlinks=True):
        here = Path(parent)
        folders.sort()
        suffixes = {Path(name).suffix.lower() for name in files}
        if suffixes & _PICTURE_SUFFIXES and not suffixes & VIDEO_SUFFIXES and here != folder:
            found.append(here)
            folders.clear()
        found += [here / name for name in files if Path(name).suffix.lower() in VIDEO_SUFFIXES]
    return sorted(found)


def _named(top: Path, name: str) -> str | None:
    """The file ``name`` of any video suffix, or the folder ``name``, directly under ``top``."""
    for suffix in (".webm", ".mp4", "", ".mkv", ".avi"):
        if (top / f"{name}{suffix}").exists():
            return f"{name}{suffix}"
    return None


def _share(name: str) -> float:
    """A number in [0, 1) that only the name decides."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "big") / 2**48


def _split(name: str) -> str:
    return _SPLIT_NAMES.get(name.strip().lower(), name.strip())


def _table(path: str | os.PathLike[str], *columns: str) -> Iterable[dict[str, str]]:
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"{file}: not found; give the dataset's CSV file")
    with file.open(newline="", encoding="utf-8") as lines:
        table = csv.DictReader(lines)
        lacking = [name for name in columns if name not in (table.fieldnames or ())]
        if lacking:
            raise ValueError(f"{file}: no column {', '.join(lacking)}; give the dataset's CSV file")
        return list(table)


def _json(path: str | os.PathLike[str]) -> Any:
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"{file}: not found; give the dataset's JSON file")
    return json.loads(file.read_text(encoding="utf-8"))
