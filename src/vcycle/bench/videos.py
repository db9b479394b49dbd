"""The videos that are measured: those under a folder that decode to the end, raw and prepared.

On a broken video the sources would do different work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vcycle.data.decode.probe import probe
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location, UnreadableVideo, Video
from vcycle.datasets.folders import plain_name, videos_under
from vcycle.datasets.prepare import prepare_videos


def prepare_intact(
    video_dir: Path,
    folder: Path,
    *,
    keeps_reasons: bool,
    remark: Callable[[str], None],
) -> tuple[Manifest, Manifest]:
    """The intact videos, raw and prepared, the latter in ``folder``.

    ``remark`` is told how many videos are left out. Raises ValueError if all are; the message names
    the reasons in ``folder`` if it ``keeps_reasons``.
    """
    none = f"{video_dir}: no video in it decodes to the end; give a folder of intact videos"
    files = _video_files(video_dir, without=folder)
    raw = _manifest_of(video_dir, files)
    try:
        outcome = prepare_videos(raw, folder, num_workers=0)
    except ValueError as error:
        raise error if keeps_reasons else ValueError(none) from None
    made = tuple(video for video in raw.videos if video.path not in outcome.bad)
    if len(made) < len(files):
        left = len(files) - len(made)
        remark(f"{left} of {len(files)} videos left out: they do not decode to the end")
    return replace(raw, videos=made), outcome.manifest


def _video_files(folder: Path, *, without: Path) -> list[Path]:
    """The video files at any depth of a folder, except those prepared into a part of it."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; give a folder of videos")
    top, prepared = folder.resolve(), without.resolve()
    inside = prepared != top and prepared.is_relative_to(top)
    return [
        folder / path.relative_to(top)
        for path in videos_under(top)
        if not path.is_dir() and not (inside and path.is_relative_to(prepared))
    ]


def _manifest_of(folder: Path, files: list[Path]) -> Manifest:
    """The files of a folder that can be probed, all of one class."""
    videos = []
    for path in files:
        name = plain_name(path, folder)
        with suppress(UnreadableVideo):
            metadata: dict[str, Any] = vars(probe(Location(str(folder / name))))
            videos.append(Video(path=name, labels=(0,), split="train", **metadata))
    if not videos:
        raise ValueError(f"{folder}: holds no readable video; give a folder of videos")
    return Manifest(folder, ("any",), tuple(videos))
