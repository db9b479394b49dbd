"""The decoded frames of a small set of videos, kept in the memory of each process that decodes.

A coarse clip has few frames of few pixels. Most of its cost is to open a file, to seek, and to
decode what lies between its frames; where the frames of all videos fit into memory, each video is
decoded once, and its clips are cut from what was kept. In: the frames of a video, not decoded yet.
Out: the same, decoded; ``cut_clip`` makes the clip of them that ``read_clip`` makes of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vcycle.data.metadata import Location, UnreadableVideo, Video


class KeptFrames:
    """At most ``max_bytes`` of decoded frames; what is sent to another process begins empty."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._videos: dict[Location, tuple[Any, ...] | None] = {}
        self._num_bytes = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptFrames, (self.max_bytes,)

    def of(self, place: Location, frames: Iterator[Any]) -> Sequence[Any] | None:
        """The kept ``av.VideoFrame``s of a video; ``frames`` decodes them, and is used once.

        None, then and later, if they do not fit into memory or one does not decode: ``read_clip``
        says why, or gets along without that frame.
        """
        if place not in self._videos:
            self._videos[place] = self._keep(frames)
        return self._videos[place]

    def _keep(self, frames: Iterator[Any]) -> tuple[Any, ...] | None:
        kept: list[Any] = []
        num_bytes = self._num_bytes
        try:
            for frame in frames:
                if not kept or frame is not kept[-1]:  # else it is shown for longer
                    num_bytes += sum(plane.buffer_size for plane in frame.planes)
                if num_bytes > self.max_bytes:
                    return None
                kept.append(frame)
        except UnreadableVideo:
            return None
        self._num_bytes = num_bytes
        return tuple(kept) or None


def decoded_bytes(videos: Iterable[Video]) -> int:
    """The memory that all frames of some videos take at most, if they are in 4:2:0, as most are.

    That is half of three bytes a pixel; decoders add to small frames up to as much.
    """
    sizes = {video.source: 3 * video.num_frames * video.width * video.height for video in videos}
    return sum(sizes.values())
