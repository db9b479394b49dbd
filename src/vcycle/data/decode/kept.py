"""The decoded frames of a small set of videos, kept in the memory of each process that decodes.

A coarse clip has few frames of few pixels. Most of its cost is to open a file, to seek, and to
decode what lies between its frames; where the frames of all videos fit into memory, each video is
decoded once, and its clips are cut from what was kept. In: the frames of a video, not decoded yet.
Out: the same, decoded; ``cut_clip`` makes the clip of them that ``read_clip`` makes of the file.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from vcycle.data.metadata import Video

_ENTRY_BYTES = 8
"""Of a frame that is shown once more."""


class KeptFrames:
    """About ``max_bytes`` of decoded frames at most, in one process and one of its threads.

    What is pickled, and so sent to another process, begins empty. A file that is replaced under its
    name stays what it was.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._videos: dict[Hashable, tuple[Any, ...] | None] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptFrames, (self.max_bytes,)

    def __contains__(self, video: Hashable) -> bool:
        """Whether ``add`` was called for a video."""
        return video in self._videos

    def get(self, video: Hashable) -> Sequence[Any] | None:
        """The frames of a video, each an ``av.VideoFrame``, if they are kept."""
        return self._videos.get(video)

    def add(self, video: Hashable, frames: Iterator[Any]) -> Sequence[Any] | None:
        """Decode ``frames`` and keep them, unless they do not fit or one does not decode.

        In the latter case ``read_clip`` says why, or gets along without that frame.
        """
        kept: list[Any] = []
        num_bytes = self.num_bytes
        self._videos[video] = None
        try:
            for frame in frames:
                is_new = not kept or frame is not kept[-1]
                size = sum(plane.buffer_size for plane in frame.planes) if is_new else 0
                num_bytes += size + _ENTRY_BYTES
                if num_bytes > self.max_bytes:
                    return None
                kept.append(frame)
        except Exception:  # a hostile file may provoke any
            return None
        if kept:
            self.num_bytes, self._videos[video] = num_bytes, tuple(kept)
        return self._videos[video]


def decoded_bytes(videos: Iterable[Video]) -> int:
    """About the most memory that all frames of some videos take in 4:2:0, as most videos are.

    That is half of three bytes a pixel; decoders add to small frames up to as much.
    """
    sizes = {video.source: 3 * video.num_frames * video.width * video.height for video in videos}
    return sum(sizes.values())
