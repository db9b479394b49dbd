"""A dataset of decoded videos, indexed by whole numbers, becomes one of requested clips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch.utils.data import Dataset

from vcycle.data.dataset import Clip
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

    Raises ValueError if an item is no such pair or a label out of range, or if the grid range
    counts frames at a rate, which items do not have.
    """

    videos: DecodedVideos
    grid_range: GridRange | None = None
    flip: bool = True
    num_classes: int | None = None

    def __post_init__(self) -> None:
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
        item = self.videos[request.index]
        if not (isinstance(item, (tuple, list)) and len(item) == 2):
            said = f"{len(item)} values" if isinstance(item, (tuple, list)) else type(item).__name__
            raise ValueError(
                f"dataset[{request.index}]: {said}; let it return the pair (frames, label)"
            )
        frames, label = item
        checked = checked_label(label, video=request.index, num_classes=self.num_classes)
        pixels = to_shape(frames, request, self.grid_range, flip=self.flip)
        return Clip(pixels, checked if checked.ndim else int(checked), request)
