"""From a decoded picture to a clip's pixels: crop, bilinear scale, RGB, mirror.

What is not in the grid's box is never scaled: the box is copied out of the picture's planes first,
which is what makes a small crop of a large picture cheap. Scaling stays in 4:2:0 and the small
result is converted to RGB by swscale's unscaled path: scaling straight to RGB leaves its fast code.

The scaling is bilinear (paper, section 3.2) and widens its filter when it shrinks, so coarse grids
do not alias; the official code's does not, and aliases.
"""

from __future__ import annotations

from typing import Any

import av
import numpy as np
import torch
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from vcycle.data.grid import Box, Grid

# Planar formats whose planes can be cut by rows and columns; others are scaled whole, then cut.
_PLANAR = frozenset(
    f"{kind}{bits}"
    for kind in ("yuv420p", "yuv422p", "yuv444p", "gray")
    for bits in ("", "10le", "12le")
) | {"yuvj420p", "yuvj422p", "yuvj444p"}


class _Cut:
    """Copies a box out of pictures of one layout, into a frame that serves them all."""

    def __init__(self, picture: Any, box: Box) -> None:
        self.frame: Any = av.VideoFrame(box.width, box.height, picture.format.name)
        self.frame.colorspace, self.frame.color_range = picture.colorspace, picture.color_range
        self.parts = []
        depth = 2 if picture.format.name.endswith("le") else 1
        for source, target in zip(picture.planes, self.frame.planes, strict=True):
            # 1 for luma; 1 or 2 for chroma, whose odd last pixel counts as a whole one.
            down = -(-picture.height // source.height)
            across = -(-picture.width // source.width)
            top, left = box.top // down, box.left // across * depth
            rows = min(target.height, source.height - top)
            columns = min(target.width * depth, source.width * depth - left)
            wanted = slice(top, top + rows), slice(left, left + columns)
            self.parts.append((wanted, _bytes(target)[:rows, :columns]))

    def __call__(self, planes: Any) -> Any:
        """The box of a picture's planes; chroma is cut to whole chroma pixels."""
        for source, (wanted, target) in zip(planes, self.parts, strict=True):
            target[...] = _bytes(source)[wanted]
        return self.frame


class Resampler:
    """Resamples the pictures of one clip on its grid's box; ``mirror`` follows for all at once."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.layout: Any = None  # of a picture; what is below was made for it
        self.turns = 0  # quarters counter-clockwise to the picture as it is displayed
        self.box = grid.box  # in the stored picture
        self.cut: _Cut | None = None
        self.scaler: Any = VideoReformatter()
        self.converter: Any = VideoReformatter()

    def __call__(self, picture: Any) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 RGB of the grid; ``picture`` is an av.VideoFrame of any format."""
        name, height, width = picture.format.name, picture.height, picture.width
        planes = picture.planes
        cuttable = name in _PLANAR and all(plane.line_size > 0 for plane in planes)
        colors = picture.colorspace, picture.color_range
        layout = (name, cuttable, height, width, picture.rotation, colors)
        if layout != self.layout:
            self.layout, self.turns = layout, picture.rotation % 360 // 90
            self.box = stored_box(self.grid.box, height, width, self.turns)
            is_whole = (self.box.height, self.box.width) == (height, width)
            self.cut = _Cut(picture, self.box) if cuttable and not is_whole else None
        height, width = self.grid.height, self.grid.width
        if self.turns % 2:
            height, width = width, height
        if cuttable:
            rgb = self._rgb(self.cut(planes) if self.cut else picture, height, width)
        else:
            rgb = self._scale_then_cut(picture, self.box, height, width)
        return np.rot90(rgb, self.turns) if self.turns else rgb

    def _rgb(self, frame: Any, height: int, width: int) -> NDArray[np.uint8]:
        scaled = self.scaler.reformat(
            frame,
            width=width,
            height=height,
            format="yuv420p",
            interpolation=Interpolation.BILINEAR,
            threads=1,
        )
        rgb = self.converter.reformat(scaled, format="rgb24", threads=1)
        return _bytes(rgb.planes[0])[:, : 3 * width].reshape(height, width, 3)

    def _scale_then_cut(self, picture: Any, box: Box, height: int, width: int) -> NDArray[np.uint8]:
        """For packed and palette formats, which are rare: correct, not fast."""
        whole: NDArray[np.uint8] = self.scaler.reformat(
            picture, format="rgb24", threads=1
        ).to_ndarray()
        part = whole[box.top : box.top + box.height, box.left : box.left + box.width]
        frame: Any = av.VideoFrame.from_ndarray(np.ascontiguousarray(part), format="rgb24")
        rgb: NDArray[np.uint8] = self.converter.reformat(
            frame,
            width=width,
            height=height,
            format="rgb24",
            interpolation=Interpolation.BILINEAR,
            threads=1,
        ).to_ndarray()
        return rgb


def keep_freed_memory() -> None:
    """Make malloc keep what it frees, for this process: call it once, before decoding much.

    Every picture is a fresh buffer near the size from which glibc takes memory from the system
    and gives it back at once. Freeing one large block moves that size up to 32 MB.
    """
    np.empty(2**25 - 2**16, np.uint8)


def crop_and_scale(frames: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Whole frames as displayed, (T, height, width, 3) uint8 -> the grid's (T, H, W, 3).

    For decoders that deliver RGB. The scaling is torch's, with the same antialiased bilinear
    filter.
    """
    height, width = frames.shape[1:3]
    box = stored_box(grid.box, height, width, 0)
    part = frames[:, box.top : box.top + box.height, box.left : box.left + box.width]
    images = part.permute(0, 3, 1, 2)  # (T, 3, h, w), channels last
    # torch scales bytes on the CPU only.
    scale = _scale if images.device.type == "cpu" else _scale_in_floats
    images = scale(images, grid.height, grid.width)
    if grid.flip:
        images = images.flip(3)
    return images.permute(0, 2, 3, 1)


def _scale(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """(T, 3, h, w) -> (T, 3, height, width)"""
    return torch.nn.functional.interpolate(
        images, size=(height, width), mode="bilinear", antialias=True
    )


def _scale_in_floats(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """As ``_scale`` of bytes; differs by at most 1, for that one rounds in between."""
    return _scale(images.float(), height, width).round_().clamp_(0, 255).to(torch.uint8)


def upright(picture: Any) -> Any:
    """The picture as it is displayed: turned, if its rotation says so."""
    turns = picture.rotation % 360 // 90
    if not turns:
        return picture
    rgb = np.rot90(picture.to_ndarray(format="rgb24"), turns)
    return av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb), format="rgb24")


def mirror(clip: NDArray[np.uint8]) -> None:
    """Exchange left and right of a clip in place, (T, H, W, 3); torch is fast at it, not numpy."""
    images = torch.from_numpy(clip).permute(0, 3, 1, 2)  # channels last
    for few in torch.split(images, 4):  # as fit into a cache
        few.copy_(few.flip(3))


def _bytes(plane: Any) -> NDArray[np.uint8]:
    """(rows, bytes of a row) of a plane, without a copy."""
    return np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)


def stored_box(box: Box, height: int, width: int, turns: int) -> Box:
    """Where a box of the displayed picture lies in the stored one, ``height`` x ``width``.

    The display turns the stored picture by ``turns`` quarters counter-clockwise. A box that
    reaches outside (the picture is smaller than the probe said) is pushed and cut to fit.
    """
    if turns % 2:
        height, width = width, height  # as displayed
    box_height, box_width = min(box.height, height), min(box.width, width)
    top, left = min(box.top, height - box_height), min(box.left, width - box_width)
    if turns == 1:
        return Box(left, height - top - box_height, box_width, box_height)
    if turns == 2:
        return Box(height - top - box_height, width - left - box_width, box_height, box_width)
    if turns == 3:
        return Box(width - left - box_width, top, box_width, box_height)
    return Box(top, left, box_height, box_width)
