"""The videos that a person names: files, folders, manifests and URIs.

In: words. Out: where each video is, and which seconds of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vcycle.data.manifest import Manifest, locate
from vcycle.data.metadata import FOLDER_FRAME_RATE, IMAGE_SUFFIXES, Location
from vcycle.datasets.folders import is_hidden, videos_under


@dataclass(frozen=True)
class NamedVideo:
    """A video by the name that results show; ``end_seconds`` 0 is its end.

    ``frame_rate`` is that of a folder of images, which have none of their own.
    """

    name: str
    place: Location
    start_seconds: float = 0.0
    end_seconds: float = 0.0
    frame_rate: float = FOLDER_FRAME_RATE


def find_videos(words: Iterable[str | Path]) -> list[NamedVideo]:
    """The videos of files, folders of any depth, manifests (a ``.csv`` file) and URIs, in order.

    Raises ValueError if there is no such file, or a folder holds no video.
    """
    return [video for word in words for video in _videos_of(str(word))]


def _videos_of(word: str) -> list[NamedVideo]:
    if not word:
        raise ValueError("video '': it is empty; give a file, a folder, a manifest or a URI")
    if "://" in word:
        return [NamedVideo(word, locate(Path(), Location(word)))]
    path = Path(word)
    if path.suffix == ".csv":
        manifest = Manifest.read(path)
        return [
            NamedVideo(
                video.name,
                manifest.locate(video),
                video.start_seconds,
                video.end_seconds,
                video.frame_rate,
            )
            for video in manifest.videos
        ]
    if not path.is_dir():
        if not path.exists():
            raise ValueError(
                f"video {word}: no such file or folder; give a video, a folder of some, a "
                f"manifest.csv, a URI or - for standard input"
            )
        return [NamedVideo(word, Location(word))]
    if found := videos_under(path):
        return [NamedVideo(str(each), Location(str(each))) for each in found]
    shown = (each for each in path.iterdir() if not is_hidden(each.name))
    if any(each.suffix.lower() in IMAGE_SUFFIXES for each in shown):
        return [NamedVideo(word, Location(word))]  # the frames of one video
    raise ValueError(f"folder {word}: no video in it; give a folder that holds some")
