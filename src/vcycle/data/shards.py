"""Tar shards: many videos in few files, each found by its byte range.

A shard is a plain WebDataset tar (``00000042.mp4`` beside ``00000042.json``), so any tar tool and
any WebDataset reader can use it. The manifest beside the shards is their index: shard, offset,
size, labels and probe of each video. Reading one is a range read of a local file or of an object
store, so access stays random, shuffling global, and resuming an addition.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

from vcycle.data.manifest import Manifest, Video


def pack_shards(
    manifest: Manifest, directory: str | os.PathLike[str], *, shard_bytes: int, base_uri: str = ""
) -> Manifest:
    """Move the files of a manifest into tar shards of about ``shard_bytes`` each.

    Writes the shards and their manifest under ``directory`` and removes the files that lie there
    once all shards are complete. ``base_uri`` is where the shards will be served from, such as
    ``s3://bucket/kinetics``; without it the manifest points beside itself.
    """
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes is {shard_bytes}; use a positive size")
    root = Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    packed: list[Video] = []
    shards: list[tuple[Path, Path]] = []
    position = 0
    while position < len(manifest):
        name = f"shard-{len(shards):06d}.tar"
        partial = root / f".{name}"
        with tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
            while position < len(manifest) and tar.offset < shard_bytes:
                video = manifest.videos[position]
                offset, num_bytes = _add(tar, manifest, video, key=f"{position:08d}")
                path = f"{base_uri.rstrip('/')}/{name}" if base_uri else name
                packed.append(replace(video, path=path, offset=offset, num_bytes=num_bytes))
                position += 1
        shards.append((partial, root / name))
    for partial, shard in shards:
        partial.replace(shard)
    result = replace(manifest, root=root, videos=tuple(packed))
    result.write()
    for video in manifest.videos:
        place = Path(manifest.locate(video).uri)
        if place.is_relative_to(root):
            place.unlink()
    return result


def _add(tar: tarfile.TarFile, manifest: Manifest, video: Video, *, key: str) -> tuple[int, int]:
    """Append a video and its labels; where the video's bytes begin in the tar, and how many."""
    file = Path(manifest.locate(video).uri)
    member = tarfile.TarInfo(f"{key}{file.suffix}")
    member.size = file.stat().st_size
    with file.open("rb") as content:
        tar.addfile(member, content)
    end = tar.offset  # behind the padding to whole blocks
    start = end - -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    facts = {"path": video.path, "labels": video.labels, "spans": video.spans, "split": video.split}
    text = json.dumps(facts).encode()
    about = tarfile.TarInfo(f"{key}.json")
    about.size = len(text)
    tar.addfile(about, io.BytesIO(text))
    return start, member.size
