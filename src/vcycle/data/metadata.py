"""The metadata of one video: where it is, what a probe found, what it shows; or why it is bad.

Plain values, which go to workers and back. Nothing here opens a video.
"""

from __future__ import annotations

from dataclasses import dataclass

# What probes and manifests may claim, which files and people can get wrong: least and most.
_RANGES = {
    "num_frames": (1, 10**8),
    "frame_rate": (0.001, 10**6),
    "duration_seconds": (0, 10**9),
    "width": (1, 10**5),
    "height": (1, 10**5),
    "rotation": (0, 359),
    "key_interval": (0, 10**8),
}


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """What a probe found: counts, seconds, and pixels as displayed (rotation already applied).

    Raises ValueError if a value is none that a video has, such as a frame rate of 0.
    """

    num_frames: int
    frame_rate: float
    duration_seconds: float
    width: int
    height: int
    codec: str = ""
    rotation: int = 0  # degrees counter-clockwise by which the display turns the stored frame
    key_interval: int = 0  # frames from one key frame to the next; 1: all are, 0: unknown

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} {value}: a video has {least} to {most}")


@dataclass(frozen=True)
class Location:
    """Where a video's bytes are: a file or URI, or ``num_bytes`` of it from ``offset`` on."""

    uri: str
    offset: int = 0
    num_bytes: int = 0  # 0: all of the file

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


def one_line(error: BaseException) -> str:
    """An exception's message on one line, cut at 200 characters."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    text = getattr(error, "strerror", None)  # of an OSError, or of FFmpeg
    if not text:
        text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200]


@dataclass(frozen=True, kw_only=True)
class Video(VideoInfo):
    """One line of a manifest: where the video is, what it shows, and what its probe found.

    ``spans`` are the start and end in seconds of each of ``labels``; without spans they hold for
    the whole video. ``offset`` and ``num_bytes`` name a part of a file, such as a tar shard.

    Raises ValueError as ``VideoInfo`` does, and if the part of the file is none.
    """

    path: str  # relative to the manifest's folder, with forward slashes; or a URI
    labels: tuple[int, ...]
    split: str
    flip: bool = True  # whether a mirrored clip keeps its labels
    spans: tuple[tuple[float, float], ...] = ()
    offset: int = 0
    num_bytes: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("offset", "num_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: give 0 or more bytes")

    @property
    def source(self) -> Location:
        """Its bytes, by the manifest's own path: unique within the manifest."""
        return Location(self.path, self.offset, self.num_bytes)

    def labels_between(self, start_seconds: float, end_seconds: float) -> tuple[int, ...]:
        """The labels that hold at any time in an interval, each once, sorted."""
        if not self.spans:
            return self.labels
        held = (
            label
            for label, (start, end) in zip(self.labels, self.spans, strict=True)
            if start <= end_seconds and end >= start_seconds
        )
        return tuple(sorted(set(held)))
