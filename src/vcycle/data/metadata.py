"""What is known of one video: where it is, what a probe found, what it shows; or why it is bad.

Plain values, which go to workers and back. Nothing here opens a video.
"""

from __future__ import annotations

from dataclasses import dataclass

# What a video can have, of each of its facts: from the least to the most.
_RANGES = {
    "num_frames": (1, 10**8),
    "frame_rate": (0.001, 10**6),
    "duration_seconds": (0, 10**9),
    "width": (1, 10**5),
    "height": (1, 10**5),
    "rotation": (0, 359),
    "key_interval": (0, 10**8),
    "offset": (0, 10**18),
    "num_bytes": (0, 10**18),
}


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """What a probe found: counts, seconds, and pixels as displayed (rotation already applied).

    Raises ValueError for a fact that no video has, such as a frame rate of 0.
    """

    num_frames: int
    frame_rate: float
    duration_seconds: float
    width: int
    height: int
    codec: str = ""
    rotation: int = 0  # degrees counter-clockwise that the stored picture is turned for display
    key_interval: int = 0  # frames from one key frame to the next; 1: all are, 0: not known

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name, least)  # a Video has more facts than a probe finds
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}; a video has {least} to {most}")


@dataclass(frozen=True)
class Location:
    """Where a video's bytes are: a file or URI, or ``num_bytes`` of it from ``offset`` on."""

    uri: str
    offset: int = 0
    num_bytes: int = 0  # 0: the whole file

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
    """What an exception says, for people: at most 200 characters of one line."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    text = getattr(error, "strerror", None)  # of an OSError, or of FFmpeg
    if not text:
        text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200]


@dataclass(frozen=True, kw_only=True)
class Video(VideoInfo):
    """One line of a manifest: where the video is, what it shows, and the facts of its probe.

    ``spans`` says from which second to which each of ``labels`` holds; without spans they hold
    for the whole video. ``offset`` and ``num_bytes`` name a part of a file, such as a tar shard.
    """

    path: str  # relative to the manifest's folder, with forward slashes; or a URI
    labels: tuple[int, ...]
    split: str
    flip: bool = True  # whether a mirrored clip still deserves its labels
    spans: tuple[tuple[float, float], ...] = ()
    offset: int = 0
    num_bytes: int = 0

    @property
    def source(self) -> Location:
        """Which bytes it names, by the manifest's own path: no other video has the same."""
        return Location(self.path, self.offset, self.num_bytes)

    def labels_between(self, start_seconds: float, end_seconds: float) -> tuple[int, ...]:
        """The labels that hold at any moment of an interval, each once, in order."""
        if not self.spans:
            return self.labels
        held = (
            label
            for label, (start, end) in zip(self.labels, self.spans, strict=True)
            if start <= end_seconds and end >= start_seconds
        )
        return tuple(sorted(set(held)))
