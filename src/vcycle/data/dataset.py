"""One clip request in, one clip out; and what happens when the video is bad.

A request carries everything: which video, which shape, which seed. The dataset holds no schedule
and no state that changes, so one set of workers serves every shape of a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vcycle.data.grid import GridRange, View, draw_grid, view_grid
from vcycle.data.manifest import Manifest
from vcycle.data.randomness import indexed_generator
from vcycle.data.video import UnreadableVideo, read_clip
from vcycle.schedule.shape import Shape

_MAX_SUBSTITUTES = 20


@dataclass(frozen=True)
class ClipRequest:
    """Which video (its place in the manifest), at which shape, from which 64-bit seed.

    Without a ``view`` the sampling grid is drawn from the seed; with one it is that fixed view.
    """

    index: int
    shape: Shape
    seed: int
    view: View | None = None


@dataclass(frozen=True)
class BadVideo:
    """A video that could not be read, and why, in one line each."""

    path: str
    reason: str


@dataclass(frozen=True)
class Clip:
    """The pixels of one request, (T, H, W, 3) uint8, and the video that they came from.

    ``index`` differs from the request's when videos were bad; those are in ``bad``.
    """

    pixels: NDArray[np.uint8]
    index: int
    labels: tuple[int, ...]
    bad: tuple[BadVideo, ...] = ()


@dataclass(frozen=True)
class ClipDataset:
    """The clips of a manifest's videos; index it with a ClipRequest."""

    manifest: Manifest
    grid_range: GridRange

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, request: ClipRequest) -> Clip:
        """Decode a clip. A bad video is replaced by others that the request's seed picks.

        Raises RuntimeError when the substitutes are bad too, twenty in a row.
        """
        bad: list[BadVideo] = []
        index = request.index
        for attempt in range(1 + _MAX_SUBSTITUTES):
            video = self.manifest.videos[index]
            try:
                pixels = self._pixels(index, request)
            except UnreadableVideo as error:
                bad.append(BadVideo(video.path, error.reason))
                rng = indexed_generator(request.seed, "substitute", attempt)
                index = int(rng.integers(len(self.manifest)))
            else:
                return Clip(pixels, index, video.labels, tuple(bad))
        listed = "; ".join(f"{video.path}: {video.reason}" for video in bad)
        raise RuntimeError(f"no readable video in {len(bad)} attempts ({listed})")

    def _pixels(self, index: int, request: ClipRequest) -> NDArray[np.uint8]:
        video = self.manifest.videos[index]
        if request.view is not None:
            grid = view_grid(video, request.shape, self.grid_range, view=request.view)
        else:
            rng = np.random.default_rng(request.seed)
            grid = draw_grid(video, request.shape, self.grid_range, rng=rng, flip=video.flip)
        return read_clip(self.manifest.locate(video), grid)
