"""Tar shards: many videos in few files, each found by its byte range.

A shard is a plain WebDataset tar (``00000042.mp4`` beside ``00000042.json``), so any tar tool and
any WebDataset reader can use it. The manifest beside the shards is their index: shard, offset,
size, labels and probe of each video. Reading one is a range read of a local file or of an object
store, so access stays random, shuffling global, and resuming an addition.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from vcycle.data.atomic import atomic
from vcycle.data.metadata import Video


def write_shard(
    path: Path, samples: Iterable[tuple[Path, Sequence[Video]]], *, first: int, shard_bytes: int
) -> list[tuple[int, int]]:
    """Copy files, the first of ``samples`` on, into a tar of about ``shard_bytes``.

    Beside each goes what the manifest's lines of it say. The samples are numbered from ``first``.
    Returns where each file's bytes begin in the tar and how many they are; there are as many as
    files were taken, and at least one.
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
    end = tar.offset  # behind the padding to whole blocks
    start = end - -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    facts, *others = (
        {"path": video.path, "labels": video.labels, "spans": video.spans, "split": video.split}
        for video in videos
    )
    text = json.dumps(facts | ({"also": others} if others else {})).encode()
    about = tarfile.TarInfo(f"{key}.json")
    about.size = len(text)
    tar.addfile(about, io.BytesIO(text))
    return start, member.size
