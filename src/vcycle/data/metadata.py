"""Metadata of one video: where it is, what a probe found, its labels; or why it is bad.

Plain values, which are sent to workers and back. No video is opened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from vcycle.data.tables import MOST

FOLDER_FRAME_RATE = 30.0
"""Of a video kept as a folder of images, which have none, unless its dataset says another."""

IMAGE_SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".webp"})
"""Of the images of such a folder."""

_LEAST = {"num_frames": 1, "frame_rate": 0.001, "width": 1, "height": 1}  # 0 for the others
_MOST = {"offset": 2**62, "num_bytes": 2**62}  # as files have; MOST for the others
_STORES = (
    *("abfs", "abfss", "adl", "az", "dbfs", "file", "gcs", "gs", "hdfs", "hf", "http", "https"),
    *("lakefs", "memory", "oci", "oss", "s3", "s3a", "sftp", "smb", "tos", "webdav", "webhdfs"),
)
INTEGERS = (
    *("num_frames", "width", "height", "rotation", "key_interval"),
    *("offset", "num_bytes"),
)
"""Of a video's numbers, those that are whole."""
_NUMBERS = (*INTEGERS, "frame_rate", "duration_seconds", "start_seconds", "end_seconds")


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """What a probe found: counts, seconds, and pixels as displayed (rotation already applied).

    Height and width count the file's pixels, which are taken as square.

    Raises ValueError if a value is impossible, such as a frame rate of 0.
    """

    num_frames: int
    frame_rate: float
    duration_seconds: float
    width: int
    height: int
    codec: str = ""
    rotation: int = 0  # degrees counter-clockwise to turn the stored frame for display
    key_interval: int = 0  # frames from one key frame to the next; 1 if all are, 0 if unknown

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            least = _LEAST.get(name, 0)
            value = getattr(self, name, least)  # some are a Video's
            if not value >= least:  # NaN is not, either
                raise ValueError(f"{name} {value}: a video has at least {least}")
            most = _MOST.get(name, MOST)
            if value > most:
                raise ValueError(f"{name} {str(value)[:20]}: a video has at most {most}")
            if name in INTEGERS and not hasattr(value, "__index__"):
                raise ValueError(f"{name} {value}: give a whole number")


def check_uri(uri: str) -> None:
    """Raise ValueError unless a manifest may name bytes by this URI.

    fsspec knows protocols that read what a file tells them to, and some that run templates in it:
    only plain stores are read.
    """
    scheme, _, rest = uri.partition("://")
    if scheme == "file" and not rest.startswith(("/", "localhost/")):
        raise ValueError(f"path {uri[:60]!r}: give file:/// and an absolute path, or a path")
    if scheme not in _STORES or "::" in uri:
        raise ValueError(
            f"path {uri[:60]!r}: give a path, or a URI of one of these stores: {', '.join(_STORES)}"
        )


@dataclass(frozen=True)
class Location:
    """Where a video's bytes are: a file or URI, or ``num_bytes`` of it from ``offset``.

    ``content`` is those bytes, if they have been fetched and are on no disk of this machine.
    """

    uri: str
    offset: int = 0
    num_bytes: int = 0  # 0 for the entire file
    content: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether ``uri`` is a path of this machine."""
        return "://" not in self.uri

    def __str__(self) -> str:
        part = f"[{self.offset}:{self.offset + self.num_bytes}]" if self.num_bytes else ""
        return f"{self.uri}{part}"


class UnreadableVideo(Exception):  # noqa: N818  what it is, not what went wrong
    """A video that cannot be decoded: ``place`` and the ``reason`` in one line."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class TookTooLong(UnreadableVideo):
    """A decode that did not end within its limit, which goes on while a process is suspended."""

    def __init__(self, place: str) -> None:
        super().__init__(place, "decoding took longer than the limit")


@dataclass(frozen=True, kw_only=True)
class Video(VideoInfo):
    """One line of a manifest: where the video is, its labels and its metadata.

    ``spans`` are the seconds, start and end, in which each of ``labels`` holds; without spans they
    hold throughout. ``offset`` and ``num_bytes`` are the bytes of a video within a tar shard. Clips
    are taken between ``start_seconds`` and ``end_seconds``, if a line is about a part of a video.
    """

    path: str  # relative to the manifest's folder, with forward slashes; or a URI
    labels: tuple[int, ...]
    split: str
    flip: bool = True  # whether a mirrored clip has the same labels
    spans: tuple[tuple[float, float], ...] = ()
    offset: int = 0
    num_bytes: int = 0
    start_seconds: float = 0.0
    end_seconds: float = 0.0  # 0 for the end of the video

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.end_seconds and self.end_seconds <= self.start_seconds:
            raise ValueError(
                f"end_seconds {self.end_seconds}: is not after start_seconds {self.start_seconds}"
            )
        for start, end in self.spans:
            if end < start:
                raise ValueError(f"spans {start:g}-{end:g}: ends before it begins; give start-end")

    @property
    def frame_range(self) -> range:
        """The frames of the video that clips are taken from, at least one."""
        # The small number keeps a product such as 0.7 * 30 from landing beside a whole frame.
        first = min(math.floor(self.start_seconds * self.frame_rate + 1e-6), self.num_frames - 1)
        end = math.ceil(self.end_seconds * self.frame_rate - 1e-6) or self.num_frames
        return range(first, max(first + 1, min(end, self.num_frames)))

    @property
    def name(self) -> str:
        """Its place, and the part that a line is about: ``a.mp4``, ``a.mp4[1.5 s:3 s]``."""
        if not self.start_seconds and not self.end_seconds:
            return str(self.source)
        end = f"{self.end_seconds:g} s" if self.end_seconds else ""
        return f"{self.source}[{self.start_seconds:g} s:{end}]"

    @property
    def source(self) -> Location:
        """The bytes of the video, by the manifest's path; the same for lines of the same video."""
        return Location(self.path, self.offset, self.num_bytes)

    def labels_between(self, start_seconds: float, end_seconds: float) -> tuple[int, ...]:
        """The labels that hold at any moment of an interval, sorted, each once."""
        if not self.spans:
            return self.labels
        held = (
            label
            for label, (start, end) in zip(self.labels, self.spans, strict=True)
            if start <= end_seconds and end >= start_seconds
        )
        return tuple(sorted(set(held)))
