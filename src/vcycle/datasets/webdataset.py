"""WebDataset shards of others: tars of ``key.mp4`` beside ``key.cls``, ``.json`` or ``.txt``.

Shards go in, a ``Listing`` with the byte range of each video comes out, so that clips are read from
the tars as they are. Only headers and labels are read here.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vcycle.data.manifest import check_class
from vcycle.data.tables import placed
from vcycle.datasets.folders import VIDEO_SUFFIXES, is_hidden, is_prepared, plain_name
from vcycle.datasets.listing import (
    SPLIT_NAMES,
    Entry,
    Listing,
    notes_on_labels,
    sorted_classes,
    whole,
)
from vcycle.datasets.splits import Splitting
from vcycle.schedule.messages import counted, quoted

_LABEL_FILES = ("cls", "json", "txt")  # in this order
_LABEL_FIELDS = ("labels", "label", "class", "cls")
_MOST_LABEL_BYTES = 1_000_000
_MOST_HEADER_BYTES = 2**16  # as many as a value of an extended attribute has on Linux
_EXTENDED = (
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
)
"""Headers of long names and further values, for the member that follows."""
_RECORD = re.compile(rb"([0-9]{1,20}) [^=\n]+=")  # of such values: its length, and the name of one
_DIGITS = re.compile(rb"[0-9]{100}")
_MOST_END_BYTES = 2**20  # zeros, of which tar writes a few thousand
_FIX = "give each video a .cls, a .json with label or labels, or a .txt"


@dataclass(frozen=True)
class _Sample:
    """A video of a shard: its bytes, and its labels by name.

    Of an empty or sparse file, or a link, there are none: ``num_bytes`` is 0.
    """

    key: str
    offset: int
    num_bytes: int
    labels: tuple[str, ...]


def shards_under(top: Path) -> list[Path]:
    """The tars at any depth of a folder, but for the system's and those of prepared videos."""
    return sorted(
        file
        for file in top.rglob("*.tar")
        if file.is_file()
        and not any(map(is_hidden, file.relative_to(top).parts))
        and not any(
            is_prepared(folder)
            for folder in file.parents
            if folder != top and folder.is_relative_to(top)
        )
    )


def list_shards(top: Path, shards: Sequence[Path], splitting: Splitting) -> Listing:
    """The videos of tars under ``top``.

    A shard or folder whose name begins with train, val or test, such as ``val-000000.tar``, names a
    split. So do those that have such a word within, as ``birds-val-000000.tar`` has, if some say
    train there and some another. Without those, ``splitting`` divides the videos. Raises ValueError
    if a file is not an uncompressed tar, a video has no label, or only some shards name a split.
    """
    splits = {shard: _split_of(shard.relative_to(top), within=False) for shard in shards}
    if not any(splits.values()):
        inside = {shard: _split_of(shard.relative_to(top), within=True) for shard in shards}
        if {"train", "val"} <= {*inside.values()} or {"train", "test"} <= {*inside.values()}:
            splits = inside
    for shard, split in splits.items():
        if any(splits.values()) and not split:
            raise ValueError(f"{shard}: names no split and other shards do; rename it")
    listed = [(shard, sample) for shard in shards for sample in _samples(shard)]
    found = [(shard, sample) for shard, sample in listed if sample.num_bytes]
    left_out = [f"{shard.name}/{each.key}" for shard, each in listed if not each.num_bytes]
    note = (
        f"{counted(len(left_out), 'video')} of tars left out, as empty or sparse files and links "
        f"have no bytes of their own there: {', '.join(map(quoted, left_out[:3]))}"
    )
    if not found and left_out:
        raise ValueError(f"{top}: {note}; write the tars anew, with the videos in them")
    if not found:
        raise ValueError(f"{top}: holds {counted(len(shards), 'tar')} without a video; {_FIX}")
    classes = sorted_classes(name for _, sample in found for name in sample.labels)
    numbers = {name: label for label, name in enumerate(classes)}
    paths = [plain_name(shard, top) for shard, _ in found]
    labels = [tuple(numbers[name] for name in sample.labels) for _, sample in found]
    names = [f"{path}/{sample.key}" for path, (_, sample) in zip(paths, found, strict=True)]
    notes = notes_on_labels(names, labels)
    if left_out:
        notes += (note,)
    given, why = [splits[shard] for shard, _ in found], "the names of shards tell the splits"
    chosen, more = splitting.with_val(given, names, labels, reason=why)
    entries = tuple(
        Entry(path, label, split, offset=sample.offset, num_bytes=sample.num_bytes, group=group)
        for path, label, (split, group), (_, sample) in zip(
            paths, labels, chosen, found, strict=True
        )
    )
    return Listing(top, classes, entries, notes=notes + more)


def _split_of(shard: Path, *, within: bool) -> str:
    """The split that a shard's folder or name begins with, or has ``within``; empty if none."""
    for part in shard.parts:
        words = re.split("[-_.]", part.lower())
        splits = {SPLIT_NAMES[w] for w in (words if within else words[:1]) if w in SPLIT_NAMES}
        if len(splits) == 1:
            return splits.pop()
    return ""


def _samples(shard: Path) -> Iterator[_Sample]:
    with ExitStack() as stack:
        try:
            tar = stack.enter_context(tarfile.open(shard, "r:", tarinfo=_TarInfo))
        except _LongHeaderError:
            raise
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{shard}: is not an uncompressed tar ({error}); unpack it") from None
        members = _members(tar, shard)
        for name, member in members.items():
            stem, _, suffix = name.rpartition(".")
            if f".{suffix}".lower() not in VIDEO_SUFFIXES:
                continue
            num_bytes = 0 if not member.isfile() or member.issparse() else member.size
            if not num_bytes:
                yield _Sample(stem, 0, 0, ())
                continue
            with placed(f"{shard} sample {quoted(stem)}", _FIX):
                labels = _labels(_texts(tar, members, stem))
            yield _Sample(stem, member.offset_data, num_bytes, labels)


class _LongHeaderError(ValueError):
    """One line about a header that is not read."""


class _TarInfo(tarfile.TarInfo):
    """A header of a tar; what extends it is read whole, and may not be large.

    What is said of all members, such as a comment of git's, is passed over: ``tarfile`` copies it
    into each.
    """

    def _proc_member(self, tar: Any) -> Any:
        if self.type not in _EXTENDED:
            return super()._proc_member(tar)  # type: ignore[misc]
        if not 0 <= self.size <= _MOST_HEADER_BYTES:
            raise _LongHeaderError(
                f"{tar.name!s}: a header of {self.size:,} bytes, as of extended attributes; write "
                f"it without them"
            )
        content = tar.fileobj.read(self._block(self.size))  # type: ignore[attr-defined]
        if self.type == tarfile.XGLTYPE:
            return self.fromtarfile(tar)
        if self.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            _check_records(content.rstrip(b"\0"))
        tar.fileobj.seek(-len(content), 1)
        return super()._proc_member(tar)  # type: ignore[misc]


def _check_records(content: bytes) -> None:
    """Raise ValueError unless a header is lines, each of its length, a name and a value.

    On others ``tarfile`` takes hours, or memory without end; so it does on digits alone.
    """
    place = 0
    while place < len(content):
        record = _RECORD.match(content, place)
        end = place + int(record[1]) if record else 0
        if not record or not record.end() < end <= len(content) or content[end - 1 : end] != b"\n":
            raise ValueError("a damaged header")
        place = end
    if _DIGITS.search(content):
        raise ValueError("a header of many digits")


def _members(tar: tarfile.TarFile, shard: Path) -> dict[str, tarfile.TarInfo]:
    """Files and links of a tar, by name. Raises ValueError if it is damaged, or goes on after that.

    ``tarfile`` takes a damaged header for the end, and goes back by a negative size.
    """
    members: dict[str, tarfile.TarInfo] = {}
    last = "nothing"
    try:
        for member in tar:
            # What tarfile keeps of each, and nothing reads.
            tar.members.clear()  # type: ignore[attr-defined]
            member.pax_headers = {}
            if member.size < 0:
                raise ValueError(f"{member.size} bytes")
            path = PurePosixPath(member.name)
            is_link = member.issym() or member.islnk()
            is_new = member.isfile() or (is_link and str(path) not in members)
            if is_new and not any(map(is_hidden, path.parts)):
                members[str(path)] = member
            last = quoted(member.name)
        with shard.open("rb") as file:
            file.seek(tar.offset)
            end = file.read(_MOST_END_BYTES)
        if not end or end.strip(b"\0"):
            raise ValueError("data after its end, or no header" if end else "no end")
    except _LongHeaderError:
        raise
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, OSError) as error:
        raise ValueError(
            f"{shard}: is damaged or cut off after {last} ({error}); write it again"
        ) from None
    return members


def _texts(
    tar: tarfile.TarFile, members: dict[str, tarfile.TarInfo], stem: str
) -> Iterator[tuple[str, str]]:
    """What files of labels say beside a video: of its own name, or of that up to the first dot."""
    path = PurePosixPath(stem)
    key = path.with_name(path.name.partition(".")[0])
    for kind in _LABEL_FILES:
        named = (members.get(f"{name}.{kind}") for name in (stem, key))
        member = next((each for each in named if each is not None and each.isfile()), None)
        if member is None:
            continue
        if member.size > _MOST_LABEL_BYTES:
            raise ValueError(f"its .{kind} is too large for labels")
        content = tar.extractfile(member)
        assert content is not None  # as of every file
        try:
            yield kind, content.read().decode().strip()
        except ValueError as error:
            raise ValueError(f"its .{kind} cannot be read ({error})") from None


def _labels(texts: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    for kind, text in texts:
        try:
            value: Any = json.loads(text) if kind == "json" else text
        except (ValueError, RecursionError) as error:
            raise ValueError(f"its .{kind} cannot be read ({error})") from None
        if isinstance(value, dict):
            value = next((value[field] for field in _LABEL_FIELDS if field in value), None)
        names = [whole(name) for name in (value if isinstance(value, list) else [value])]
        if value is not None and value != "" and all(isinstance(n, str | int) for n in names):
            labels = tuple(dict.fromkeys(str(name).strip() for name in names))
            for name in labels:
                check_class(name)
            return labels
    raise ValueError("has no label")
