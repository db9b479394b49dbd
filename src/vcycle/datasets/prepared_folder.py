"""A folder of prepared videos: how they were made, and where the bytes of each are.

``prepared.json`` names the originals and the settings; a folder that holds anything else is
refused. ``prepared.jsonl`` is the journal. It names each file before it is written, so that nothing
else is replaced or removed; then the original that it was made from, so that it is made again if
that changes; then the shard that the video was packed into, before the file is removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vcycle.data.atomic import remove_partials, write_atomic
from vcycle.data.manifest import MANIFEST_FILES, PREPARED_FILE, check_path
from vcycle.data.metadata import Video, VideoInfo
from vcycle.datasets.journal import Journal, Row
from vcycle.datasets.shards import write_shard
from vcycle.datasets.stamps import file_stamp

_JOURNAL = "prepared.jsonl"
Stamp = list[Any]
"""What changes if an original does, in values that JSON returns unchanged: ``NUM_FACTS`` of the
video, then the stamp of its files, 0s if they are gone."""
NUM_FACTS = 5


@dataclass(frozen=True)
class _Entry:
    """One prepared video: a file of its name, or a byte range of ``shard``."""

    stamp: Stamp
    info: VideoInfo
    num_bytes: int
    shard: str = ""
    offset: int = 0


@contextmanager
def open_prepared_folder(root: Path, record: Mapping[str, Any]) -> Iterator[PreparedFolder]:
    """Open ``root`` for one run at a time; partial files of killed runs are removed.

    Raises ValueError if ``root`` holds other things or videos of another ``record``, or if another
    run is writing there.
    """
    _refuse_foreign(root)
    root.mkdir(parents=True, exist_ok=True)
    with Journal(root / _JOURNAL) as journal:
        _claim(root, record)
        folder = PreparedFolder(root, journal, base_uri=record["base_uri"].rstrip("/"))
        folder.tidy()
        try:
            yield folder
        finally:
            folder.tidy()


def _refuse_foreign(root: Path) -> None:
    if not root.exists() or (root / PREPARED_FILE).exists():
        return
    for file in sorted(root.iterdir()):
        if file.name != _JOURNAL and not file.name.startswith(f".{PREPARED_FILE}."):
            raise ValueError(
                f"{root}: holds {file.name}, which `vcycle data prepare` did not write; "
                "choose an empty folder"
            )


def _claim(root: Path, record: Mapping[str, Any]) -> None:
    file = root / PREPARED_FILE
    if not file.exists():
        write_atomic(file, json.dumps(record) + "\n")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(
            f"{file}: was not written by `vcycle data prepare`; choose an empty folder"
        )
    for key, wanted in record.items():
        if found.get(key) != wanted:
            raise ValueError(
                f"{root}: holds videos prepared otherwise ({key} {found.get(key)!r}, "
                f"not {wanted!r}); choose another folder"
            )


def _checked_sizes(*sizes: int) -> tuple[int, ...]:
    if not all(isinstance(each, int) and each >= 0 for each in sizes):
        raise TypeError(f"sizes {sizes}")
    return sizes


class PreparedFolder:
    """The prepared videos under ``root``, by their names, as its journal has them."""

    def __init__(self, root: Path, journal: Journal, *, base_uri: str) -> None:
        self.root = root
        self.base_uri = base_uri
        self._journal = journal
        self._ours: set[str] = set()  # names of files that this tool may have written
        self._entries: dict[str, _Entry] = {}
        self._num_in_shard: dict[str, int] = {}
        for row in journal.rows():
            try:
                self._read(row)
            except (KeyError, TypeError, ValueError):  # written by another version
                continue
        self._check_inside(self._ours)

    def tidy(self) -> None:
        """Remove partial files that killed runs left."""
        remove_partials(self.root, {*self._ours, *MANIFEST_FILES, PREPARED_FILE})

    def _read(self, row: Row) -> None:
        """Raises KeyError, TypeError or ValueError if it is none of this version's."""
        if "shard" in row:
            shard, ranges = row["shard"], dict(row["ranges"])
            check_path(shard)
            parts = {name: _checked_sizes(*each) for name, each in ranges.items()}
            self._num_in_shard[shard] = len(parts)
            for name, (offset, num_bytes) in parts.items():
                if name in self._entries:
                    self._entries[name] = replace(
                        self._entries[name], shard=shard, offset=offset, num_bytes=num_bytes
                    )
            return
        name = row["name"]
        check_path(name)
        self._ours.add(name)
        if "info" in row:
            info, (num_bytes,) = VideoInfo(**row["info"]), _checked_sizes(row["num_bytes"])
            self._entries[name] = _Entry(list(row["stamp"]), info, num_bytes)

    def _check_inside(self, names: Iterable[str]) -> None:
        top = self.root.resolve()
        for folder in {(self.root / name).parent for name in names}:
            if not folder.resolve().is_relative_to(top):
                raise ValueError(
                    f"{folder}: leads out of {self.root}; replace the link by a folder, or choose "
                    f"another folder"
                )

    def own(self, names: Iterable[str]) -> None:
        """Record that files of these names are ours, before they are written.

        Raises ValueError if one exists that this tool did not write, or lies behind a link.
        """
        names = list(names)
        self._check_inside(names)
        new = [name for name in names if name not in self._ours]
        for name in new:
            if os.path.lexists(self.root / name):
                raise ValueError(
                    f"{self.root / name}: is in the way, and was not written by `vcycle data "
                    "prepare`; move it elsewhere or choose another folder"
                )
        for name in new:
            self._journal.add({"name": name})
            self._ours.add(name)

    def holds(self, name: str, stamp: Stamp) -> bool:
        """Whether the video of this name is here and was made from an original of this stamp.

        An original that is gone counts as unchanged.
        """
        entry = self._entries.get(name)
        if entry is None or entry.stamp[:NUM_FACTS] != stamp[:NUM_FACTS]:
            return False
        original = stamp[NUM_FACTS:]
        if any(original) and original != entry.stamp[NUM_FACTS:]:
            return False
        if not entry.shard:
            return file_stamp(self.root / name)[0] == entry.num_bytes
        if self.base_uri:  # shards may have been moved there
            return True
        return file_stamp(self.root / entry.shard)[0] >= entry.offset + entry.num_bytes

    def add(self, name: str, stamp: Stamp, info: VideoInfo, num_bytes: int) -> None:
        """Record a prepared file."""
        self._journal.add(
            {"name": name, "stamp": stamp, "info": asdict(info), "num_bytes": num_bytes}
        )
        self._entries[name] = _Entry(stamp, info, num_bytes)

    def pack(self, rows: Mapping[str, Sequence[Video]], *, shard_bytes: int) -> None:
        """Move the files of these names into new shards, after the existing ones.

        ``rows`` are the lines of the manifest of each name. A file is removed once its shard is
        complete and in the journal.
        """
        packed = [name for name in rows if self._entries[name].shard]
        loose = [name for name in rows if not self._entries[name].shard]
        self._remove(packed)  # if an interrupted run did not
        while loose:
            shard = f"shard-{len(self._num_in_shard):06d}.tar"
            self.own([shard])
            ranges = write_shard(
                self.root / shard,
                ((self.root / name, rows[name]) for name in loose),
                first=sum(self._num_in_shard.values()),
                shard_bytes=shard_bytes,
            )
            taken, loose = loose[: len(ranges)], loose[len(ranges) :]
            row = {"shard": shard, "ranges": dict(zip(taken, ranges, strict=True))}
            self._journal.add(row)
            self._read(row)
            self._remove(taken)
        for name in rows:  # a shard needs no folders of classes
            for folder in (self.root / name).relative_to(self.root).parents[:-1]:
                with suppress(OSError):  # it is not empty, or gone already
                    (self.root / folder).rmdir()

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.root / name).unlink(missing_ok=True)

    def place(self, video: Video, name: str) -> Video:
        """The line of the prepared manifest for a line of the originals'."""
        entry = self._entries[name]
        video = replace(video, path=name, offset=0, num_bytes=0, **asdict(entry.info))
        if not entry.shard:
            return video
        path = f"{self.base_uri}/{entry.shard}" if self.base_uri else entry.shard
        return replace(video, path=path, offset=entry.offset, num_bytes=entry.num_bytes)
