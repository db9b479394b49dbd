"""Videos that could not be read: which, why, and how many a run accepts.

``BadVideo``s go in as batches are made; a table path -> reason comes out, or TooManyBadVideos.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_MOST_LISTED = 10


class TooManyBadVideos(ValueError):  # noqa: N818
    """More videos are bad than a run accepts; the message lists them."""


@dataclass(frozen=True)
class BadVideo:
    """A video that could not be read, and why, in one line each.

    ``path`` is the manifest's, with the range of bytes if the video is part of a file, and of
    seconds if its line is about a part of the video: each line of a manifest is one.
    """

    path: str
    reason: str


class BadVideos:
    """The bad videos of a run over a dataset of ``num_videos``.

    At most ``max_share`` of the videos may be bad, but one always may.
    """

    def __init__(self, *, num_videos: int, max_share: float) -> None:
        self.num_videos = num_videos
        self.max_share = max_share
        self.reasons: dict[str, str] = {}  # by path

    def add(self, bad: Iterable[BadVideo]) -> None:
        """Add what a batch could not read; raises TooManyBadVideos if that is too many by now."""
        self.reasons.update((video.path, video.reason) for video in bad)
        if len(self.reasons) > max(1, self.max_share * self.num_videos):
            raise TooManyBadVideos(
                f"{len(self.reasons)} of {self.num_videos} videos cannot be read, more than the "
                f"accepted {self.max_share:.1%}; fix them, or accept more with "
                f"--data.max_bad_share:{listed(self.reasons)}"
            )


def listed(reasons: dict[str, str]) -> str:
    """A line for each of the first paths and its reason, each after a line break."""
    lines = [f"\n  {path}: {reason}" for path, reason in reasons.items()]
    more = len(lines) - _MOST_LISTED
    return "".join(lines[:_MOST_LISTED]) + (f"\n  and {more} more" if more > 0 else "")
