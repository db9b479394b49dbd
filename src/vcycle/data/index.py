"""Index a dataset: probe what is listed, in parallel, and write the manifest.

Probes are kept in a journal as they come, so an interrupted run goes on where it was. What does
not decode is quarantined in ``bad.csv``, what is listed but absent in ``missing.csv``.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vcycle.data.frames import probe_frames
from vcycle.data.importers import Entry, Listing
from vcycle.data.manifest import Location, Manifest, Video, VideoInfo, write_reasons
from vcycle.data.parallel import Failed, run_jobs
from vcycle.data.video import probe

_JOURNAL = "probes.jsonl"


@dataclass(frozen=True)
class Indexed:
    """What an index found: the manifest, and names with reasons of what is not in it."""

    manifest: Manifest
    missing: tuple[tuple[str, str], ...]  # (name, split)
    bad: dict[str, str]  # path -> reason

    def __str__(self) -> str:
        listed = len(self.manifest) + len(self.missing) + len(self.bad)
        return (
            f"{len(self.manifest)} of {listed} videos indexed in {self.manifest.num_classes} "
            f"classes; {len(self.missing)} missing (missing.csv), {len(self.bad)} do not decode "
            "(bad.csv)"
        )


def index_videos(
    listing: Listing,
    directory: str | os.PathLike[str] | None = None,
    *,
    num_workers: int = 1,
    limit_seconds: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
) -> Indexed:
    """Probe every listed video and write the manifest to ``directory`` (the videos' by default).

    A video that takes longer than ``limit_seconds`` to probe counts as bad. Raises ValueError
    when none of them decodes.
    """
    out = Path(directory) if directory is not None else listing.root
    out.mkdir(parents=True, exist_ok=True)
    journal = _Journal(out / _JOURNAL)
    entries = {entry.path: entry for entry in listing.entries}
    stamps = {path: _stamp(listing.root / path) for path in entries}
    todo = [path for path in entries if not journal.knows(path, stamps[path])]
    done = len(entries) - len(todo)
    job = _ProbeJob(listing.root, listing.frame_rate)
    with journal:
        for path, outcome in run_jobs(
            job, todo, num_workers=num_workers, limit_seconds=limit_seconds
        ):
            journal.add(path, stamps[path], outcome)
            done += 1
            if progress is not None:
                progress(done, len(entries))
    bad = {path: found.reason for path in entries if isinstance(found := journal[path], Failed)}
    videos = tuple(
        _video(entry, found, _path(listing.root, out, entry.path))
        for entry in listing.entries
        if isinstance(found := journal[entry.path], VideoInfo)
    )
    write_reasons(out / "bad.csv", bad)
    write_reasons(
        out / "missing.csv",
        {name: f"listed in {split}, not found" for name, split in listing.missing},
    )
    if not videos:
        raise ValueError(
            f"{listing.root}: none of {len(entries)} videos decodes; see {out}/bad.csv"
        )
    listed = Counter(entry.split for entry in listing.entries)
    listed.update(split for _, split in listing.missing)
    manifest = Manifest(out, listing.classes, videos, listed=tuple(sorted(listed.items())))
    manifest.write()
    return Indexed(manifest, listing.missing, bad)


def _video(entry: Entry, info: VideoInfo, path: str) -> Video:
    return Video(
        path=path,
        labels=entry.labels,
        split=entry.split,
        flip=entry.flip,
        spans=entry.spans,
        **asdict(info),
    )


def _path(root: Path, out: Path, path: str) -> str:
    """Relative where the manifest lies above the videos, a URI elsewhere."""
    file = (root / path).absolute()
    folder = out.absolute()
    if file.is_relative_to(folder):
        return file.relative_to(folder).as_posix()
    return f"file://{quote(str(file))}"


def _stamp(path: Path) -> list[int]:
    """What changes when a file does."""
    try:
        facts = path.stat()
    except OSError:
        return [0, 0]
    return [facts.st_size, facts.st_mtime_ns]


@dataclass(frozen=True)
class _ProbeJob:
    root: Path
    frame_rate: float

    def __call__(self, path: str) -> VideoInfo:
        file = self.root / path
        if file.is_dir():
            return probe_frames(str(file), frame_rate=self.frame_rate)
        return probe(Location(str(file)))


class _Journal:
    """Outcomes of probes in a file of JSON lines, appended as they come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, tuple[list[int], VideoInfo | Failed]] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for line in lines:
            if not line:
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # the last line of an interrupted run
                continue
            outcome = VideoInfo(**row["info"]) if "info" in row else Failed(row["reason"])
            self.found[row["path"]] = (row["stamp"], outcome)

    def __enter__(self) -> _Journal:
        self.file = self.path.open("a", encoding="utf-8", buffering=1)
        self.file.write("\n")  # ends what an interrupted run may have left unfinished
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getitem__(self, path: str) -> VideoInfo | Failed:
        return self.found[path][1]

    def knows(self, path: str, stamp: list[int]) -> bool:
        return path in self.found and self.found[path][0] == stamp

    def add(self, path: str, stamp: list[int], outcome: VideoInfo | Failed) -> None:
        row: dict[str, Any] = {"path": path, "stamp": stamp}
        if isinstance(outcome, Failed):
            row["reason"] = outcome.reason
        else:
            row["info"] = asdict(outcome)
        self.file.write(json.dumps(row) + "\n")
        self.found[path] = (stamp, outcome)
