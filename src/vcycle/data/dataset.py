"""One clip request in, one clip out; and what happens if the video is bad.

The dataset holds no schedule, and no state but frames that were decoded, so one set of workers
serves every shape of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from vcycle.data.bad_videos import BadVideo, TooManyBadVideos, listed
from vcycle.data.cache import VideoCache
from vcycle.data.decode.kept import KeptFrames
from vcycle.data.decode.remote import fetch
from vcycle.data.decode.torchcodec import read_clip_torchcodec
from vcycle.data.decode.video import cut_clip, read_clip, stored_frames
from vcycle.data.grid import Grid, GridRange, grid_of_part
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location, TookTooLong, UnreadableVideo, Video
from vcycle.data.randomness import indexed_generator
from vcycle.data.request import ClipRequest, check_request
from vcycle.schedule.messages import one_line

_MAX_SUBSTITUTES = 20


@dataclass(frozen=True)
class ClipFacts:
    """A clip without its pixels: what a worker sends back."""

    index: int
    labels: tuple[int, ...]
    bad: tuple[BadVideo, ...]
    left_to_pyav: bool


@dataclass(frozen=True)
class Clip:
    """The answer to a request: pixels, (T, H, W, 3) uint8, and a label.

    Args:
        label: the class, from 0; or (classes,) float32 of zeros and ones if there are several.
        video: the index of the video that the pixels are of, None if it is the request's. Another
            one's if videos were bad; those are in ``bad``.
        left_to_pyav: by the dataset's decoder, which cannot decode that file.
    """

    pixels: Tensor
    label: int | Tensor
    request: ClipRequest
    video: int | None = None
    bad: tuple[BadVideo, ...] = ()
    left_to_pyav: bool = False

    @property
    def index(self) -> int:
        """The index of the video that the pixels are of; -1 if they are not those of the view.

        In training another video takes the place of a bad one. In an evaluation none can: its
        pixels are no view of the one that was asked for.
        """
        if self.video is None or self.video == self.request.index:
            return self.request.index
        return self.video if self.request.view is None else -1

    @property
    def labels(self) -> tuple[int, ...]:
        """The classes that hold, rising."""
        if isinstance(self.label, Tensor) and self.label.ndim == 1:
            return tuple(self.label.nonzero().flatten().tolist())
        return (int(self.label),)

    @property
    def facts(self) -> ClipFacts:
        return ClipFacts(self.index, self.labels, self.bad, self.left_to_pyav)


@dataclass(frozen=True)
class ClipDataset(Dataset[Clip]):
    """The clips of a manifest's videos; index it with a ClipRequest.

    ``decoder`` "torchcodec" needs that library, and "nvdec" is torchcodec on a GPU. Decoded frames
    of a small set stay in memory, in each process that decodes, if there is a ``kept`` for them:
    "pyav" alone does that. Raises ValueError for another decoder.
    """

    manifest: Manifest
    grid_range: GridRange
    limit_seconds: float = 60.0  # for decoding one clip; a video that takes longer is bad
    decoder: Literal["pyav", "torchcodec", "nvdec"] = "pyav"
    cache: VideoCache | None = None  # of remote videos
    kept: KeptFrames | None = None  # several datasets may share one

    def __post_init__(self) -> None:
        if self.decoder not in ("pyav", "torchcodec", "nvdec"):
            raise ValueError(f"decoder {self.decoder!r}: give 'pyav', 'torchcodec' or 'nvdec'")
        if self.kept is not None and self.decoder != "pyav":
            raise ValueError(f"kept frames are those of 'pyav', not of {self.decoder!r}: give None")

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, request: ClipRequest) -> Clip:
        """Decode a clip; see ``read``."""
        check_request(request, num_videos=len(self))
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
            grid = self.grid(video, request)
            try:
                if index in bad_indices:
                    raise UnreadableVideo(video.path, bad_indices[index])
                note(index)
                try:
                    is_left = self._decode(video, grid, out)
                except TookTooLong:  # once more: the process may have been suspended
                    note(index)
                    is_left = self._decode(video, grid, out)
            except UnreadableVideo as error:
                bad.append(BadVideo(video.name, error.reason))
                rng = indexed_generator(request.seed, "substitute", attempt)
                index = int(rng.integers(len(self.manifest)))
            else:
                label = self._label(video, grid, request)
                return Clip(out, label, request, index, tuple(bad), is_left)
        reasons = {video.path: video.reason for video in bad}
        raise TooManyBadVideos(
            f"no readable video in {len(bad)} attempts; restore them, or index the others again:"
            f"{listed(reasons)}"
        )

    def grid(self, video: Video, request: ClipRequest) -> Grid:
        """The request's grid, in the part of the video that its line of the manifest is about."""
        return grid_of_part(
            video, lambda part: request.grid(part, self.grid_range, flip=video.flip)
        )

    def _decode(self, video: Video, grid: Grid, out: Tensor) -> bool:
        """Whether the dataset's decoder left the clip to PyAV."""
        place = self.manifest.locate(video)
        name = place, video.num_frames
        frames = None if self.kept is None else self.kept.get(name)
        is_left = False
        if frames is None:
            with self._near(place) as near:
                if self.kept is not None and name not in self.kept:
                    if not near.is_local and near.content is None:
                        near = replace(near, content=fetch(near))  # it may be read twice
                    # The worker may count as hung half a limit after a clip's own.
                    limit = self.limit_seconds / 4
                    frames = self.kept.add(name, stored_frames(near, video, limit_seconds=limit))
                if frames is None:
                    is_left = self._read(near, video, grid, out)
        if frames is not None:
            try:
                cut_clip(frames, grid, out=out.numpy())
            except Exception as error:  # of frames of a size or a format that is none
                raise UnreadableVideo(str(place), one_line(error)) from error
        return is_left

    def _read(self, place: Location, video: Video, grid: Grid, out: Tensor) -> bool:
        all_key_frames, limit = video.key_interval == 1, self.limit_seconds
        if self.decoder == "pyav":
            read_clip(
                place, grid, out=out.numpy(), all_key_frames=all_key_frames, limit_seconds=limit
            )
            return False
        return not read_clip_torchcodec(
            place, grid, out=out, all_key_frames=all_key_frames, limit_seconds=limit
        )

    def _near(self, place: Location) -> AbstractContextManager[Location]:
        if self.cache is None or place.is_local:
            return nullcontext(place)
        return self.cache.local(place)

    def _label(self, video: Video, grid: Grid, request: ClipRequest) -> int | Tensor:
        """In training the labels of the clip's own time, in evaluation those of the whole video."""
        labels = video.labels
        if request.view is None:
            rate = video.frame_rate
            labels = video.labels_between(grid.frames[0] / rate, grid.frames[-1] / rate)
        if not self.manifest.multi_label:
            return labels[0]
        held = torch.zeros(self.manifest.num_classes)
        held[list(labels)] = 1
        return held
