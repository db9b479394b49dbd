"""A dataset of decoded videos, indexed by whole numbers, becomes one of requested clips."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol

from torch.utils.data import ConcatDataset, Dataset, Subset

from vcycle.data.dataset import Clip, ClipDataset
from vcycle.data.grid import GridRange
from vcycle.data.labels import checked_label
from vcycle.data.request import ClipRequest, check_request
from vcycle.data.to_shape import to_shape


class DecodedVideos(Protocol):
    """``dataset[i]`` is (frames, label): uint8 RGB of (T, H, W, 3), and a class or multi-hot."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class ClipsOf(Dataset[Clip]):
    """The clips of a map-style dataset that yields (frames, label) by integer index.

    Index it with a ClipRequest. ``grid_range`` and ``flip`` are those of ``to_shape``; with
    ``num_classes`` labels are checked. Frames are uint8 RGB, (T, H, W, 3), tensor or array, and
    decoded whole: a dataset that takes the request itself can decode less.

    Of ``ClipDataset``s that torch's ``Subset`` and ``ConcatDataset`` hold, or of other ``ClipsOf``,
    the clips are their own; a bad video's substitute is then of the same subset.

    Raises ValueError if an item is no such pair or a label out of range, if the grid range
    counts frames at a rate, which items do not have, or if it is given beside such datasets' own;
    for a ``Subset`` of several of them, for some beside pairs, or if their classes differ.
    """

    videos: DecodedVideos
    grid_range: GridRange | None = None
    flip: bool = True
    num_classes: int | None = None
    _parts: tuple[ClipDataset | ClipsOf, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_parts", _parts(self.videos))
        if self._parts and (self.grid_range or not self.flip or self.num_classes):
            raise ValueError(
                f"ClipsOf: grid_range, flip and num_classes are those of each "
                f"{type(self._parts[0]).__name__} in it; give them there"
            )
        manifests = [each.manifest for each in self._parts if isinstance(each, ClipDataset)]
        if len({(each.classes, each.multi_label) for each in manifests}) > 1:
            raise ValueError(
                "ClipsOf: its ClipDatasets are of different classes; index their videos together, "
                "so that a label means one class"
            )
        if self.grid_range is not None and self.grid_range.frame_rate is not None:
            raise ValueError(
                f"frame_rate {self.grid_range.frame_rate:g} of the grid range: (frames, label) "
                f"have none of their own; write a dataset that gives it to vcycle.to_shape, or "
                f"leave it out"
            )

    def __len__(self) -> int:
        return len(self.videos)

    def __getitem__(self, request: ClipRequest) -> Clip:
        """Read a video and sample the clip from it."""
        check_request(request, num_videos=len(self))
        if self._parts:
            return self._clip_of_part(request)
        item = self.videos[request.index]
        if not (isinstance(item, (tuple, list)) and len(item) == 2):
            said = f"{len(item)} values" if isinstance(item, (tuple, list)) else type(item).__name__
            raise ValueError(
                f"dataset[{request.index}]: {said}; let it return the pair (frames, label), or "
                f"write a dataset that takes the request, and a collate_fn of your own"
            )
        frames, label = item
        checked = checked_label(label, video=request.index, num_classes=self.num_classes)
        pixels = to_shape(frames, request, self.grid_range, flip=self.flip)
        return Clip(pixels, checked if checked.ndim else int(checked), request)

    def _clip_of_part(self, request: ClipRequest) -> Clip:
        ends = list(accumulate(map(len, self._parts), initial=0))
        place = bisect_right(ends, request.index) - 1
        first = ends[place]
        clip = self._parts[place][replace(request, index=request.index - first)]
        video = None if clip.video is None else first + clip.video
        return replace(clip, request=request, video=video)


def _parts(videos: Any) -> tuple[ClipDataset | ClipsOf, ...]:
    """The datasets, one after the other, that are indexed with requests; none if they are not."""
    if isinstance(videos, ClipDataset | ClipsOf):
        return getattr(videos, "_parts", ()) or (videos,)
    if type(videos) is ConcatDataset:
        parts = [_parts(each) for each in videos.datasets]
        if any(parts) and not all(parts):
            raise ValueError(
                "ConcatDataset of datasets that take requests and of pairs: give it ClipsOf(pairs)"
            )
        return tuple(each for part in parts for each in part)
    if type(videos) is Subset:
        parts_of = _parts(videos.dataset)
        if len(parts_of) > 1:
            raise ValueError(
                f"Subset of {len(parts_of)} datasets that are joined: give a ConcatDataset of a "
                f"Subset of each"
            )
        return tuple(_subset(part, videos.indices) for part in parts_of)
    return ()


def _subset(dataset: ClipDataset | ClipsOf, indices: Sequence[int]) -> ClipDataset | ClipsOf:
    if isinstance(dataset, ClipsOf):
        return replace(dataset, videos=Subset(dataset.videos, indices))  # type: ignore[arg-type]
    videos = tuple(dataset.manifest.videos[index] for index in indices)
    return replace(dataset, manifest=replace(dataset.manifest, videos=videos))
