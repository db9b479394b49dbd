"""From a decoded frame to a clip's pixels: crop, bilinear scale, RGB, mirror.

An ``av.VideoFrame`` and a grid go in; (H, W, 3) uint8 RGB comes out. Only the grid's box is scaled:
it is copied out of the frame's planes first, which makes a small crop of a large frame cheap.
Scaling stays in 4:2:0, and swscale's unscaled path converts the small result to RGB: scaling
straight to RGB would leave swscale's fast code.

The scaling is bilinear (paper, section 3.2) and antialiased: its filter widens as it shrinks. The
official code's filter does not, and aliases on coarse grids.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import av
import numpy as np
import torch
from av.sidedata.sidedata import Type
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from vcycle.data.grid import Box, Grid

# Planar formats whose planes can be cut by rows and columns; others are converted, then cut.
_PLANAR = frozenset(
    f"{kind}{bits}"
    for kind in ("yuv420p", "yuv422p", "yuv444p", "gray")
    for bits in ("", "10le", "12le")
) | {"yuvj420p", "yuvj422p", "yuvj444p", "yuv411p"}


class _Cut:
    """Copies a box out of frames of one layout, into one frame that is used for all of them."""

    def __init__(self, frame: Any, box: Box) -> None:
        self.frame: Any = av.VideoFrame(box.width, box.height, frame.format.name)
        self.frame.colorspace, self.frame.color_range = frame.colorspace, frame.color_range
        self.parts = []
        depth = 2 if frame.format.name.endswith("le") else 1
        for source, target in zip(frame.planes, self.frame.planes, strict=True):
            # 1 for luma; 1, 2 or 4 for chroma, which rounds odd sizes up.
            down = -(-frame.height // source.height)
            across = -(-frame.width // source.width)
            top, left = box.top // down, box.left // across * depth
            rows = min(target.height, source.height - top)
            columns = min(target.width * depth, source.width * depth - left)
            wanted = slice(top, top + rows), slice(left, left + columns)
            self.parts.append((wanted, _bytes(target)[:rows, :columns]))

    def __call__(self, planes: Any) -> Any:
        """The box of a frame's planes, with chroma cut at its own pixels."""
        for source, (wanted, target) in zip(planes, self.parts, strict=True):
            target[...] = _bytes(source)[wanted]
        return self.frame


def _is_cuttable(frame: Any, planes: Any) -> bool:
    return frame.format.name in _PLANAR and all(plane.line_size > 0 for plane in planes)


def without_fields(frame: Any) -> Any:
    """The frame; of an interlaced one a copy that does not say so, if its format can be cut.

    swscale scales the fields of one that does by themselves, which keeps the combs of what moves.
    """
    if not frame.interlaced_frame or not _is_cuttable(frame, planes := frame.planes):
        return frame
    return _Cut(frame, Box(0, 0, frame.height, frame.width))(planes)


class Resampler:
    """Resamples the frames of one clip to its grid; ``mirror`` follows, once for the clip."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.layout: Any = None  # of the last frame; what is below was made for it
        self.mirrored, self.turns = False, 0  # from the stored frame to the displayed one
        self.box = grid.box  # in the stored frame
        self.cut: _Cut | None = None
        self.scaler: Any = VideoReformatter()
        self.converter: Any = VideoReformatter()

    def __call__(self, frame: Any) -> NDArray[np.uint8]:
        """(H, W, 3) uint8 RGB of the grid; ``frame`` is an av.VideoFrame of any format."""
        name, height, width = frame.format.name, frame.height, frame.width
        planes = frame.planes
        cuttable = _is_cuttable(frame, planes)
        colors = frame.colorspace, frame.color_range
        mirrored, turns = orientation(frame)
        layout = (name, cuttable, height, width, mirrored, turns, colors)
        if layout != self.layout:
            self.layout, self.mirrored, self.turns = layout, mirrored, turns
            box = stored_box(self.grid, height, width, turns)
            self.box = replace(box, left=width - box.left - box.width) if mirrored else box
            is_all = (self.box.height, self.box.width) == (height, width)
            self.cut = _Cut(frame, self.box) if cuttable and not is_all else None
        height, width = self.grid.height, self.grid.width
        if self.turns % 2:
            height, width = width, height
        if cuttable:
            rgb = self._rgb(self.cut(planes) if self.cut else without_fields(frame), height, width)
        else:
            rgb = self._convert_then_cut(frame, self.box, height, width)
        if self.mirrored:
            rgb = rgb[:, ::-1]
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

    def _convert_then_cut(self, frame: Any, box: Box, height: int, width: int) -> NDArray[np.uint8]:
        """For packed and palette formats, which are rare: correct, not fast."""
        pixels = self.scaler.reformat(frame, format="rgb24", threads=1).to_ndarray()
        part = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
        cut: Any = av.VideoFrame.from_ndarray(np.ascontiguousarray(part), format="rgb24")
        rgb: NDArray[np.uint8] = self.converter.reformat(
            cut,
            width=width,
            height=height,
            format="rgb24",
            interpolation=Interpolation.BILINEAR,
            threads=1,
        ).to_ndarray()
        return rgb


def keep_freed_memory() -> None:
    """Make this process's malloc keep what it frees; call it once, before decoding much.

    Every frame is a fresh buffer, near the size from which glibc asks the system for memory and
    returns it at once. Freeing one large block raises that size to 32 MB.
    """
    np.empty(2**25 - 2**16, np.uint8)


def crop_and_scale(frames: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Uncropped frames as displayed, (T, height, width, 3) uint8 -> the grid's (T, H, W, 3).

    For decoders that deliver RGB. torch scales, with the same antialiased bilinear filter.
    """
    height, width = frames.shape[1:3]
    box = stored_box(grid, height, width, 0)
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
    """As ``_scale`` of bytes, but for at most 1: that one rounds in between."""
    return _scale(images.float(), height, width).round_().clamp_(0, 255).to(torch.uint8)


def orientation(frame: Any) -> tuple[bool, int]:
    """Whether a frame is mirrored to be displayed, left to right, and how often it is then turned.

    By 90 degrees counter-clockwise, to the nearest: 0 to 3. Of an image with Exif, mirroring is not
    known.
    """
    mirrored = _determinant(frame) < 0
    # FFmpeg takes the angle from the image of the horizontal axis, which a mirror turns around.
    return mirrored, (round(rotation(frame) / 90) + 2 * mirrored) % 4


def displayed_size(frame: Any) -> tuple[int, int]:
    """The height and width of a frame as it is displayed."""
    is_turned = orientation(frame)[1] % 2 == 1
    return (frame.width, frame.height) if is_turned else (frame.height, frame.width)


def rotation(frame: Any) -> int:
    """The degrees, from 0 to 359, by which a frame says it is turned; 0 if they make no sense."""
    return frame.rotation % 360 if _determinant(frame) else 0


def _determinant(frame: Any) -> int:
    """Of the display matrix: below 0 it mirrors, at 0 it is none; 1 without one."""
    try:
        matrix = frame.side_data.get(Type.DISPLAYMATRIX)
    except ValueError:  # beside a kind of data, such as Exif, that PyAV does not know
        matrix = None
    if matrix is None:
        return 1
    a, b, _, c, d = np.frombuffer(matrix, np.int32)[:5].tolist()
    return int(a * d - b * c)


def upright(frame: Any) -> Any:
    """The frame as it is displayed: mirrored and turned, if it says so."""
    mirrored, turns = orientation(frame)
    if not (mirrored or turns):
        return frame
    rgb = frame.to_ndarray(format="rgb24")
    rgb = np.rot90(rgb[:, ::-1] if mirrored else rgb, turns)
    return av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb), format="rgb24")


def mirror(clip: NDArray[np.uint8]) -> None:
    """Swap left and right of a clip in place, (T, H, W, 3), by torch: numpy is slow at it."""
    images = torch.from_numpy(clip).permute(0, 3, 1, 2)  # channels last
    for few in torch.split(images, 4):  # as many as fit into a cache
        few.copy_(few.flip(3))


def _bytes(plane: Any) -> NDArray[np.uint8]:
    """(rows, bytes of a row) of a plane, without a copy."""
    return np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)


def stored_box(grid: Grid, height: int, width: int, turns: int) -> Box:
    """Where the grid's box of the displayed frame lies in the stored one, ``height`` x ``width``.

    The display turns the stored frame by ``turns`` quarters counter-clockwise. A box that reaches
    outside (of a grid without a frame size) is moved and cut to fit.
    """
    if turns % 2:
        height, width = width, height  # as displayed
    box = grid.box_in(height, width)
    box_height, box_width = min(box.height, height), min(box.width, width)
    top, left = min(box.top, height - box_height), min(box.left, width - box_width)
    if turns == 1:
        return Box(left, height - top - box_height, box_width, box_height)
    if turns == 2:
        return Box(height - top - box_height, width - left - box_width, box_height, box_width)
    if turns == 3:
        return Box(width - left - box_width, top, box_width, box_height)
    return Box(top, left, box_height, box_width)
