"""Tar shards: many videos in few files, each found by its byte range.

A shard is a plain WebDataset tar (``00000042.mp4`` beside ``00000042.json``) that any WebDataset
reader can use. The manifest beside the shards is their index: shard, offset, size, labels and
metadata of each video. Reading one is a range read of a local file or an object store, so access
stays random and shuffling global.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from vcycle.data.atomic import atomic
from vcycle.data.metadata import Video

# What a sample's JSON file says of its video.
_LISTED = ("path", "labels", "spans", "split", "start_seconds", "end_seconds")


def write_shard(
    path: Path, samples: Iterable[tuple[Path, Sequence[Video]]], *, first: int, shard_bytes: int
) -> list[tuple[int, int]]:
    """Copy files, from the first of ``samples`` on, into a tar of about ``shard_bytes``.

    Beside each goes a JSON file with its lines of the manifest. The samples are numbered from
    ``first``. Returns the offset and size in bytes of each file in the tar, at least one file; the
    rest of ``samples`` did not fit.
    """
    ranges: list[tuple[int, int]] = []
    with atomic(path) as partial, tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
        for file, videos in samples:
            if ranges and tar.offset >= shard_bytes:
                break
            ranges.append(_add(tar, file, videos, key=f"{first + len(ranges):08d}"))
    return ranges


def _add(tar: tarfile.TarFile, file: Path, videos: Sequence[Video], *, key: str) -> tuple[int, int]:
    member = tarfile.TarInfo(f"{key}{file.suffix}")
    member.size = file.stat().st_size
    with file.open("rb") as content:
        tar.addfile(member, content)
    end = tar.offset  # after the padding to full blocks
    start = end - -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    first, *others = ({name: getattr(video, name) for name in _LISTED} for video in videos)
    text = json.dumps(first | ({"also": others} if others else {})).encode()
    about = tarfile.TarInfo(f"{key}.json")
    about.size = len(text)
    tar.addfile(about, io.BytesIO(text))
    return start, member.size
