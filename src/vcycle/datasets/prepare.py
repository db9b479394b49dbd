"""Rewrite a dataset into the form that decodes fastest at every grid.

Small frames, each a key frame (or one in ``key_interval``), without B-frames and CABAC: a clip then
costs what its own frames cost. The originals are only read. A file appears under its name when it
is complete and has been decoded again. The same command resumes, and prepares what is new in the
manifest, has changed, or failed before.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

from vcycle.data.atomic import atomic
from vcycle.data.decode.encode import encode_video_frames
from vcycle.data.decode.probe import probe
from vcycle.data.decode.resample import without_fields
from vcycle.data.decode.video import iterate_frames
from vcycle.data.manifest import Manifest, write_reasons
from vcycle.data.metadata import Location, UnreadableVideo, Video, VideoInfo, check_uri
from vcycle.datasets.on_ray import check_shared, run_anywhere
from vcycle.datasets.parallel import Failed, check_num_workers, one_video
from vcycle.datasets.prepared_folder import (
    NUM_FACTS,
    PreparedFolder,
    Stamp,
    open_prepared_folder,
)
from vcycle.datasets.prepared_names import prepared_names
from vcycle.datasets.stamps import file_stamp, original_stamp
from vcycle.schedule.messages import counted

_PRESETS = (
    *("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower"),
    *("veryslow", "placebo"),
)
_LEAST_FRAME_BYTES, _FEW_FRAMES = 8, 10_000
"""A video of more frames than it has bytes for would be written for ever, its last one repeated."""


@dataclass(frozen=True)
class Preparation:
    """How videos are rewritten.

    ``short_side`` in pixels (never enlarged), ``key_interval`` in frames, ``quality`` as x264's
    CRF (smaller is better and larger on disk). The defaults read fastest: if every frame is a key
    frame, only the frames of a clip are decoded. They take about as many bytes as 480p originals.
    """

    short_side: int = 256
    key_interval: int = 1
    quality: int = 23
    preset: str = "veryfast"

    def __post_init__(self) -> None:
        if self.short_side < 16:
            raise ValueError(f"short_side {self.short_side}: give at least 16 pixels")
        if self.key_interval < 1:
            raise ValueError(f"key_interval {self.key_interval}: give at least 1 frame")
        if self.preset not in _PRESETS:
            raise ValueError(f"preset {self.preset!r}: choose one of {', '.join(_PRESETS)}")
        if not 0 <= self.quality <= 51:
            raise ValueError(f"quality {self.quality}: give a CRF from 0 (best) to 51")


@dataclass(frozen=True)
class Prepared:
    """The new manifest, the videos left out, and the cost in seconds and bytes."""

    manifest: Manifest
    bad: dict[str, str]  # path -> reason
    seconds: float
    source_bytes: int
    prepared_bytes: int

    def __str__(self) -> str:
        made = counted(len(self.manifest), "video")
        left = f"{len(self.bad)} left out{' (bad.csv)' if self.bad else ''}"
        return (
            f"{made} prepared in {self.seconds:.0f} s, {_megabytes(self.source_bytes)} -> "
            f"{_megabytes(self.prepared_bytes)}; {left}"
        )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def check_apart(manifest: Manifest, directory: str | os.PathLike[str]) -> None:
    """Raise ValueError if ``directory`` lies among the originals, where an index would find it."""
    folders = [
        PurePosixPath(video.path).parent for video in manifest.videos if "://" not in video.path
    ]
    if folders:
        held = manifest.root.resolve() / os.path.commonpath(folders)
        if Path(directory).resolve().is_relative_to(held):
            raise ValueError(f"{directory}: {held} holds the originals; choose a folder outside it")


def prepare_videos(
    manifest: Manifest,
    directory: str | os.PathLike[str],
    preparation: Preparation = Preparation(),
    *,
    num_workers: int = 1,
    ray: str | None = None,
    shard_bytes: int = 0,
    base_uri: str = "",
    limit_seconds: float = 600.0,
    progress: Callable[[int, int], None] | None = None,
) -> Prepared:
    """Rewrite every video of ``manifest`` under ``directory``, with a manifest of its own.

    With ``shard_bytes`` the files are packed into tar shards of about that size, to be served from
    ``base_uri`` if it is given, such as ``s3://bucket/kinetics``. A video that cannot be read, or
    takes longer than ``limit_seconds`` plus a tenth of a second a frame, is listed in ``bad.csv``
    and tried again by the next run. With the address of a cluster, ``ray``, its CPUs do the work
    instead of ``num_workers`` processes; all nodes see both folders under the same paths.

    Raises ValueError if ``directory`` holds the originals or anything else that is not ours, or was
    prepared from other originals, with other settings, or into shards of another size or URI;
    OSError if the disk is full.
    """
    started = time.monotonic()
    _check(num_workers=num_workers, shard_bytes=shard_bytes, base_uri=base_uri)
    root, source = Path(directory), manifest.root.resolve()
    if root.resolve() == source:
        raise ValueError(f"{root}: holds the originals; choose another folder")
    record = {"source": str(source), **asdict(preparation)}
    record |= {"shard_bytes": shard_bytes, "base_uri": base_uri}
    names = prepared_names(manifest.videos)
    named = [(names[video.source], video) for video in manifest.videos]
    lines: dict[str, list[Video]] = {}  # of the manifest, by the name of the prepared file
    for name, video in named:
        lines.setdefault(name, []).append(video)
    with open_prepared_folder(root, record) as folder:
        originals = replace(manifest, root=manifest.root.absolute(), videos=())
        job = _PrepareJob(originals, root.absolute(), preparation)
        firsts = {name: videos[0] for name, videos in lines.items()}
        failed = _rewrite(
            folder,
            job,
            firsts,
            num_workers=num_workers,
            ray=ray,
            limit_seconds=limit_seconds,
            progress=progress,
        )
        bad = {str(place): failed[name] for place, name in names.items() if name in failed}
        write_reasons(root / "bad.csv", bad)
        if len(failed) == len(lines):
            raise ValueError(f"{source}: no video could be prepared; {root}/bad.csv says why")
        if shard_bytes:
            made = {name: videos for name, videos in lines.items() if name not in failed}
            folder.pack(made, shard_bytes=shard_bytes)
        placed = (folder.place(video, name) for name, video in named if name not in failed)
        prepared = replace(manifest, root=root, videos=tuple(placed))
        prepared.write()
    seconds = time.monotonic() - started
    return Prepared(prepared, bad, seconds, _num_bytes(manifest), _num_bytes(prepared))


def _check(*, num_workers: int, shard_bytes: int, base_uri: str) -> None:
    check_num_workers(num_workers)
    if shard_bytes < 0:
        raise ValueError(f"shard_bytes {shard_bytes}: give a positive size, or 0 for no shards")
    if base_uri and not shard_bytes:
        raise ValueError(
            f"base_uri {base_uri!r}: shards are served from there; give shard_bytes too"
        )
    if base_uri and "://" not in base_uri:
        raise ValueError(f"base_uri {base_uri!r}: give a URI such as s3://bucket/kinetics")
    if base_uri:
        check_uri(base_uri)


def _rewrite(
    folder: PreparedFolder,
    job: _PrepareJob,
    videos: Mapping[str, Video],
    *,
    num_workers: int,
    ray: str | None,
    limit_seconds: float,
    progress: Callable[[int, int], None] | None,
) -> dict[str, str]:
    """Prepare the videos, by name, that the folder does not hold; returns reasons for failures."""
    stamps = {name: job.stamp(video) for name, video in videos.items()}
    folder.own(videos)
    todo = [(name, video) for name, video in videos.items() if not folder.holds(name, stamps[name])]
    done = len(videos) - len(todo)
    failed: dict[str, str] = {}

    def limit(task: tuple[str, Video]) -> float:
        return limit_seconds + task[1].num_frames / 10

    outcomes = run_anywhere(job, todo, num_workers=num_workers, ray=ray, limit_seconds=limit)
    with closing(outcomes):  # an interruption ends the workers before the folder is tidied
        for (name, _), outcome in outcomes:
            if isinstance(outcome, Failed):
                failed[name] = outcome.reason
            else:
                info, num_bytes = outcome
                folder.add(name, stamps[name], info, num_bytes)
            done += 1
            if progress is not None:
                progress(done, len(videos))
    return failed


def _num_bytes(manifest: Manifest) -> int:
    return sum(_size(place) for place in {manifest.locate(video) for video in manifest.videos})


def _size(place: Location) -> int:
    """In bytes; 0 if the video is remote or gone."""
    if place.num_bytes or not place.is_local:
        return place.num_bytes
    path = Path(place.uri)
    try:
        files = list(path.iterdir())
    except OSError:  # not a folder of frames
        files = [path]
    return sum(file_stamp(file)[0] for file in files)


@dataclass(frozen=True)
class _PrepareJob:
    """Rewrites a video under a name; a plain value, so that it can be sent to a worker."""

    originals: Manifest  # without its videos
    root: Path
    preparation: Preparation

    def stamp(self, video: Video) -> Stamp:
        """What the prepared file depends on, beside the settings; no time if it is remote."""
        place = self.originals.locate(video)
        facts = [video.path, video.offset, video.num_bytes, video.num_frames, video.frame_rate]
        assert len(facts) == NUM_FACTS
        return [*facts, *(original_stamp(Path(place.uri)) if place.is_local else [0, 0])]

    def __call__(self, task: tuple[str, Video]) -> tuple[VideoInfo, int]:
        """The prepared file's metadata and its size in bytes."""
        name, video = task
        target = self.root / name
        place = self.originals.locate(video)
        check_shared(self.root)
        size = _size(place)
        with one_video(str(place)):
            if video.num_frames > max(size / _LEAST_FRAME_BYTES, _FEW_FRAMES) and size:
                raise UnreadableVideo(str(place), f"{video.num_frames:,} frames in {size:,} bytes")
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic(target) as partial:
                info = self._write(place, video, partial)
                return info, partial.stat().st_size

    def _write(self, place: Location, video: Video, path: Path) -> VideoInfo:
        frames = iterate_frames(place, video)
        written = encode_video_frames(
            path,
            _scaled(frames, self.preparation.short_side),
            frame_rate=Fraction(video.frame_rate).limit_denominator(100_000),
            key_interval=self.preparation.key_interval,
            quality=self.preparation.quality,
            preset=self.preparation.preset,
        )
        if not written:
            raise UnreadableVideo(str(place), "no frame decodes")
        again = Location(str(path))
        info = probe(again)
        decoded = sum(1 for _ in iterate_frames(again, info))
        if decoded != written:
            raise UnreadableVideo(str(place), f"{written} frames written, {decoded} read back")
        return info


def _scaled(frames: Iterator[Any], short_side: int) -> Iterator[Any]:
    """Frames of even size, as displayed, their shorter side at most ``short_side`` pixels."""
    size: tuple[int, int] | None = None
    for frame in frames:
        if size is None:
            shrink = min(1.0, short_side / min(frame.height, frame.width))
            size = _even(frame.height * shrink), _even(frame.width * shrink)
        yield without_fields(frame).reformat(
            height=size[0], width=size[1], format="yuv420p", interpolation="AREA", threads=1
        )


def _even(pixels: float) -> int:
    return max(2, 2 * math.floor(pixels / 2 + 0.5))
