"""Index a dataset: probe the listed videos in parallel and write the manifest.

Each probe is appended to a journal, so the next run continues after an interruption. Videos that do
not decode are listed in ``bad.csv``, absent ones in ``missing.csv``. The next run probes again what
changed, hit the time limit or killed its worker.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vcycle.data.atomic import remove_partials
from vcycle.data.decode.probe import probe
from vcycle.data.manifest import (
    MANIFEST_FILES,
    Manifest,
    check_replaceable,
    locate,
    write_reasons,
)
from vcycle.data.metadata import Location, UnreadableVideo, Video, VideoInfo
from vcycle.datasets.balance import split_table, split_warnings
from vcycle.datasets.choices import CHOICES_FILE, Choices
from vcycle.datasets.folders import plain_path
from vcycle.datasets.journal import Journal
from vcycle.datasets.listing import Entry, Listing, local_path
from vcycle.datasets.mirroring import mirroring
from vcycle.datasets.on_ray import check_shared, run_anywhere
from vcycle.datasets.parallel import Failed, check_num_workers, one_video
from vcycle.datasets.splits import repaired_splits
from vcycle.datasets.stamps import file_stamp, frames_stamp
from vcycle.schedule.messages import counted

JOURNAL = "probes.jsonl"
_PROBE_VERSION = 6
"""Of what a probe finds; videos that another found are probed again."""
_ESCAPED = "its name has a control character or bytes that are not UTF-8, escaped here; rename it"
_CUT_SECONDS = 2.0
"""By which a part that was cut out may be longer than it is listed."""


@dataclass(frozen=True)
class Indexed:
    """The manifest, and what was left out of it and why."""

    manifest: Manifest
    missing: tuple[tuple[str, str], ...]  # (name, split)
    bad: dict[str, str]  # path -> reason
    notes: tuple[str, ...] = ()  # what the user should know, one line each
    divided: bool = False  # whether train and val were drawn here, from all of it or from train

    def __str__(self) -> str:
        listed = len(self.manifest) + len(self.missing) + len(self.bad)
        videos, classes = counted(listed, "video"), counted(self.manifest.num_classes, "class")
        parts = [f"{len(self.manifest):,} of {videos} indexed in {classes}"]
        if self.missing:
            parts.append(f"{len(self.missing)} missing (missing.csv)")
        if self.bad:
            verb = "does" if len(self.bad) == 1 else "do"
            parts.append(f"{len(self.bad)} {verb} not decode (bad.csv)")
        return "; ".join(parts)

    def report(self) -> str:
        """The videos of each class in each split, then the notes and warnings, a line each."""
        found = split_warnings(self.manifest, divided=self.divided)
        warnings = (f"warning: {text}" for text in found)
        return "\n".join([split_table(self.manifest), *self.notes, *warnings])


def index_videos(
    listing: Listing,
    directory: str | os.PathLike[str] | None = None,
    *,
    choices: Choices = Choices(),
    num_workers: int = 1,
    ray: str | None = None,
    limit_seconds: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
) -> Indexed:
    """Probe every listed video and write the manifest to ``directory`` (the videos' by default).

    ``choices`` are kept, and those that are not made are as they were earlier: clips may be
    mirrored, if nothing else was chosen, unless classes tell left from right. A video that takes
    longer than ``limit_seconds`` to probe is bad. With the address of a cluster, ``ray``, its CPUs
    do the work instead of ``num_workers`` processes; all nodes see the videos under the same path.
    Raises ValueError if no video decodes, if another run is writing there, or if a file that
    it would replace is somebody else's, or a manifest that was edited since.
    """
    check_num_workers(num_workers)
    out = Path(directory) if directory is not None else listing.root
    check_replaceable(out, listing.classes)
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):
        raise ValueError(f"{out}: cannot be written to; give another folder with --out")
    with Journal(out / JOURNAL) as journal:
        remove_partials(out, (*MANIFEST_FILES, CHOICES_FILE))
        earlier = Choices.read(out)
        _check_unedited(out, earlier.manifest_sha256)
        choices = choices.with_earlier(earlier)
        found = _probe_all(
            listing,
            journal,
            num_workers=num_workers,
            ray=ray,
            limit_seconds=limit_seconds,
            progress=progress,
        )
        mirrored, note = mirroring(listing.classes, choices.flip)
        notes = (*listing.notes, *([note] if note else ()))
        indexed = _indexed(listing, out, found, flip=mirrored, notes=notes)
        _check_unedited(out, earlier.manifest_sha256)  # probing may have taken hours
        # Before the manifest, which without them would be taken for another's, or for edited.
        replace(choices, manifest_sha256="").keep(out)
        indexed.manifest.write()
        replace(choices, manifest_sha256=_manifest_sha256(out)).keep(out)
        return indexed


def _check_unedited(folder: Path, written: str | None) -> None:
    """Raise ValueError if the manifest is not what indexing had ``written``, by its hash."""
    now = _manifest_sha256(folder)
    if written and now and now != written:
        raise ValueError(
            f"{folder}: its manifest.csv or classes.txt was edited since they were indexed, and "
            f"indexing would undo that; train on them as they are, with vcycle train "
            f"{shlex.quote(str(folder / 'manifest.csv'))}, or move them away to index anew"
        )


def _manifest_sha256(folder: Path) -> str:
    """Of a manifest and its classes; empty without them."""
    try:
        files = [(folder / name).read_bytes() for name in ("classes.txt", "manifest.csv")]
    except FileNotFoundError:
        return ""
    return hashlib.sha256(b"\0".join(files)).hexdigest()


def _probe_all(
    listing: Listing,
    journal: Journal,
    *,
    num_workers: int,
    ray: str | None,
    limit_seconds: float,
    progress: Callable[[int, int], None] | None,
) -> dict[str, VideoInfo | Failed]:
    """The outcome for each source: of an earlier run if the file is unchanged, else of this one."""
    sources = {str(entry.source): entry.source for entry in listing.entries}
    stamps = _stamps(listing, sources)
    found = {
        name: outcome
        for name, (stamp, outcome) in _known(journal).items()
        if stamp == stamps.get(name)
    }
    todo = [source for name, source in sources.items() if name not in found]
    job = _ProbeJob(listing.root.absolute(), listing.frame_rate)
    outcomes = run_anywhere(
        job, todo, num_workers=num_workers, ray=ray, limit_seconds=lambda _: limit_seconds
    )
    for source, outcome in outcomes:
        name = str(source)
        found[name] = outcome
        if isinstance(outcome, VideoInfo):
            journal.add({"path": name, "stamp": stamps[name], "info": asdict(outcome)})
        elif not outcome.passing and source.is_local:  # nobody sees a store's files change
            journal.add({"path": name, "stamp": stamps[name], "reason": outcome.reason})
        if progress is not None:
            progress(len(found), len(stamps))
    return found


def _stamps(listing: Listing, sources: dict[str, Location]) -> dict[str, list[float]]:
    """What a probe of each source depends on; many may lie in one shard."""
    stamps: dict[str, list[float]] = {}
    for source in sources.values():
        if source.uri not in stamps:
            place = locate(listing.root, source)
            found: list[float] = [0, 0]
            if place.is_local and os.path.isdir(place.uri):  # noqa: PTH112  it raises nothing
                found = [listing.frame_rate, *frames_stamp(Path(place.uri))]
            elif place.is_local:
                found = [*file_stamp(Path(place.uri))]
            stamps[source.uri] = [_PROBE_VERSION, *found]
    return {name: stamps[source.uri] for name, source in sources.items()}


def _known(journal: Journal) -> dict[str, tuple[object, VideoInfo | Failed]]:
    """Stamps and outcomes of earlier runs, the last for each source."""
    known: dict[str, tuple[object, VideoInfo | Failed]] = {}
    for row in journal.rows():
        try:
            outcome = VideoInfo(**row["info"]) if "info" in row else Failed(row["reason"])
            known[row["path"]] = row["stamp"], outcome
        except (KeyError, TypeError, ValueError):  # written by another version: probe again
            continue
    return known


def _indexed(
    listing: Listing,
    out: Path,
    found: dict[str, VideoInfo | Failed],
    *,
    flip: bool,
    notes: tuple[str, ...],
) -> Indexed:
    """The manifest, which is not yet written; ``bad.csv`` and ``missing.csv`` are."""
    bad: dict[str, str] = {}
    good: list[tuple[Entry, VideoInfo]] = []
    listed = Counter(split for _, split in listing.missing)
    for entry in listing.entries:
        name, outcome = str(entry.source), found[str(entry.source)]
        if entry.may_be_cut and isinstance(outcome, VideoInfo):
            entry = _cut(entry, outcome.duration_seconds)
        if isinstance(outcome, Failed):
            bad[name] = outcome.reason
        elif entry.start_seconds >= outcome.duration_seconds > 0:
            bad[f"{name} from {entry.start_seconds} s"] = (
                f"the video ends at {outcome.duration_seconds:.2f} s"
            )
        else:
            good.append((entry, outcome))
            continue
        listed[entry.split] += 1
    videos = [
        _video(entry, info, _path(listing.root, out, entry.path), flip=flip)
        for entry, info in _divided(good)
    ]
    write_reasons(out / "bad.csv", bad)
    write_reasons(
        out / "missing.csv",
        {name: f"listed in {split}, not found" for name, split in listing.missing},
    )
    if not videos:
        raise ValueError(_nothing(listing, out, num_bad=len(bad)))
    listed.update(video.split for video in videos)
    manifest = Manifest(out, listing.classes, tuple(videos), listed=tuple(sorted(listed.items())))
    divided = any(entry.group is not None for entry, _ in good)
    return Indexed(manifest, listing.missing, bad, notes, divided)


def _cut(entry: Entry, duration: float) -> Entry:
    """An entry of the whole file if that is the listed part already, else of the part."""
    start, end = entry.start_seconds, entry.end_seconds
    if duration <= end - start + _CUT_SECONDS:
        return replace(entry, start_seconds=0.0, end_seconds=0.0)
    return replace(entry, end_seconds=min(end, duration))


def _divided(good: list[tuple[Entry, VideoInfo]]) -> list[tuple[Entry, VideoInfo]]:
    """With every class on both sides of a split that was drawn, if there are videos for it."""
    drawn = [(entry, info) for entry, info in good if entry.group is not None]
    groups = [entry.group for entry, _ in drawn if entry.group is not None]
    labels, splits = [entry.labels for entry, _ in drawn], [entry.split for entry, _ in drawn]
    repaired = iter(repaired_splits(labels, groups, splits))
    return [
        (entry if entry.group is None else replace(entry, split=next(repaired)), info)
        for entry, info in good
    ]


def _nothing(listing: Listing, out: Path, *, num_bad: int) -> str:
    """Why there is no manifest, and which file says more."""
    problems = []
    if num_bad:
        problems.append(f"none of {counted(num_bad, 'video')} decodes (see {out}/bad.csv)")
    if listing.missing:
        problems.append(f"{len(listing.missing)} listed are not in it (see {out}/missing.csv)")
    return f"{listing.root}: " + (", ".join(problems) or "no video is listed")


def _video(entry: Entry, info: VideoInfo, path: str, *, flip: bool) -> Video:
    own = ("group", "may_be_cut")
    listed = {name: value for name, value in vars(entry).items() if name not in own}
    return Video(**{**listed, "path": path}, flip=flip, **vars(info))


def _path(root: Path, out: Path, path: str) -> str:
    """A path relative to the manifest's folder if that holds the video, else a URI."""
    return local_path(locate(plain_path(root), Location(path)).uri, plain_path(out))


@dataclass(frozen=True)
class _ProbeJob:
    root: Path
    frame_rate: float

    def __call__(self, source: Location) -> VideoInfo:
        place = locate(self.root, source)
        if place.is_local:
            check_shared(self.root)
            if "\\" in place.uri and not os.path.lexists(place.uri):  # escaped by ``plain_name``
                raise UnreadableVideo(str(place), _ESCAPED)
        with one_video(str(place)):
            return probe(place, folder_frame_rate=self.frame_rate)
