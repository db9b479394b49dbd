"""One clip request in, one clip out; and what happens if the video is bad.

A request carries everything: which video, which shape, which seed. The dataset holds no schedule
and no mutable state, so one set of workers serves every shape of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vcycle.data.bad_videos import BadVideo, TooManyBadVideos, listed
from vcycle.data.decode.torchcodec import read_clip_torchcodec
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import Grid, GridRange, View, draw_grid, view_grid
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import UnreadableVideo, Video
from vcycle.data.randomness import indexed_generator
from vcycle.schedule.shape import Shape

_MAX_SUBSTITUTES = 20


@dataclass(frozen=True)
class ClipRequest:
    """Which video (its index in the manifest), at which shape, from which 64-bit seed.

    Without a ``view`` the sampling grid is drawn from the seed; with one it is that view's.
    """

    index: int
    shape: Shape
    seed: int
    view: View | None = None

    @property
    def clip_shape(self) -> tuple[int, int, int, int]:
        """(T, H, W, 3) of the clip's pixels."""
        return self.shape.frames, self.shape.height, self.shape.width, 3

    @property
    def num_bytes(self) -> int:
        """Of the clip's pixels."""
        return 3 * self.shape.num_pixels


@dataclass(frozen=True)
class ClipFacts:
    """A clip without its pixels: what a worker sends back."""

    index: int
    labels: tuple[int, ...]
    bad: tuple[BadVideo, ...]


@dataclass(frozen=True)
class Clip:
    """The pixels of one request, (T, H, W, 3) uint8, and the video that they came from.

    ``index`` differs from the request's if videos were bad; those are in ``bad``.
    """

    pixels: Tensor
    index: int
    labels: tuple[int, ...]
    bad: tuple[BadVideo, ...] = ()

    @property
    def facts(self) -> ClipFacts:
        return ClipFacts(self.index, self.labels, self.bad)


@dataclass(frozen=True)
class ClipDataset:
    """The clips of a manifest's videos; index it with a ClipRequest.

    ``decoder`` "torchcodec" needs that library, and "nvdec" is torchcodec on a GPU. Raises
    ValueError if it is neither of these nor "pyav".
    """

    manifest: Manifest
    grid_range: GridRange
    limit_seconds: float = 60.0  # for decoding one clip; a video that takes longer is bad
    decoder: Literal["pyav", "torchcodec", "nvdec"] = "pyav"

    def __post_init__(self) -> None:
        if self.decoder not in ("pyav", "torchcodec", "nvdec"):
            raise ValueError(f"decoder {self.decoder!r}: give 'pyav', 'torchcodec' or 'nvdec'")

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, request: ClipRequest) -> Clip:
        """Decode a clip; see ``read``."""
        return self.read(request)

    def read(
        self,
        request: ClipRequest,
        *,
        out: Tensor | None = None,
        bad_indices: Mapping[int, str] = MappingProxyType({}),
        note: Callable[[int], None] = lambda index: None,
    ) -> Clip:
        """Decode a clip, into ``out`` if given, uint8 of shape ``request.clip_shape``.

        ``out`` is on the GPU for "nvdec" and on the CPU for the others. A bad video is replaced by
        one that the request's seed picks. ``bad_indices`` are videos known to be bad, and why;
        ``note`` is told the index of each video before it is tried. Raises TooManyBadVideos if
        twenty substitutes in a row are bad too.
        """
        if out is None:
            device = "cuda" if self.decoder == "nvdec" else "cpu"
            out = torch.empty(request.clip_shape, dtype=torch.uint8, device=device)
        bad: list[BadVideo] = []
        index = request.index
        for attempt in range(1 + _MAX_SUBSTITUTES):
            video = self.manifest.videos[index]
            grid = self._grid(video, request)
            try:
                if index in bad_indices:
                    raise UnreadableVideo(video.path, bad_indices[index])
                note(index)
                self._decode(video, grid, out)
            except UnreadableVideo as error:
                bad.append(BadVideo(str(video.source), error.reason))
                rng = indexed_generator(request.seed, "substitute", attempt)
                index = int(rng.integers(len(self.manifest)))
            else:
                labels = self._labels(video, grid, request)
                return Clip(out, index, labels, tuple(bad))
        reasons = {video.path: video.reason for video in bad}
        raise TooManyBadVideos(f"no readable video in {len(bad)} attempts:{listed(reasons)}")

    def _grid(self, video: Video, request: ClipRequest) -> Grid:
        frames = video.frame_range
        is_part = len(frames) < video.num_frames
        info = replace(video, num_frames=len(frames)) if is_part else video
        if request.view is not None:
            grid = view_grid(info, request.shape, self.grid_range, view=request.view)
        else:
            rng = np.random.default_rng(request.seed)
            grid = draw_grid(info, request.shape, self.grid_range, rng=rng, flip=video.flip)
        if is_part:
            grid = replace(grid, frames=tuple(frames[k] for k in grid.frames))
        return grid

    def _decode(self, video: Video, grid: Grid, out: Tensor) -> None:
        place = self.manifest.locate(video)
        all_key_frames, limit = video.key_interval == 1, self.limit_seconds
        if self.decoder == "pyav":
            read_clip(
                place, grid, out=out.numpy(), all_key_frames=all_key_frames, limit_seconds=limit
            )
        else:
            read_clip_torchcodec(
                place, grid, out=out, all_key_frames=all_key_frames, limit_seconds=limit
            )

    def _labels(self, video: Video, grid: Grid, request: ClipRequest) -> tuple[int, ...]:
        """In training the labels of the clip's own time, in evaluation those of the whole video."""
        if request.view is not None:
            return tuple(sorted(set(video.labels)))
        rate = video.frame_rate
        return video.labels_between(grid.frames[0] / rate, grid.frames[-1] / rate)
