"""The shape of a clip: frames x height x width.

In: numbers, or text such as ``16x224x224``. Out: a value that the plan, the data path and the
models share. Scaling a shape by a grid factor rounds it to what a model accepts (paper, section
3.1, footnote 3: W / sqrt(2) is no whole number).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vcycle.schedule.arguments import keep, whole_number

_MOST_PIXELS = 2**28
"""Of a clip, as 128x1080x1920 has; in single precision it takes 3.2 GB."""
_TOLERANCE = 1e-9
"""Of products such as 0.29 * 100, which lies just below 29."""


@dataclass(frozen=True, order=True)
class Shape:
    """T x H x W of one clip, in frames and pixels.

    Args:
        frames: T.
        height: H, in pixels.
        width: W, in pixels.

    Raises ValueError unless they are whole numbers of at least 1, which memory may hold.

    >>> shape = Shape.parse("16x224x224")
    >>> shape.frames, shape.num_pixels
    (16, 802816)
    """

    frames: int
    height: int
    width: int

    def __post_init__(self) -> None:
        for name in ("frames", "height", "width"):
            keep(self, **{name: whole_number(name, getattr(self, name))})
        if self.num_pixels > _MOST_PIXELS:
            raise ValueError(
                f"shape {self}: a clip of {self.num_pixels:,} pixels; give one of at most "
                f"{_MOST_PIXELS:,}"
            )

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read ``TxHxW``, or ``TxS`` for a square; raises ValueError if the text is neither."""
        if not isinstance(text, str):
            raise TypeError(f"shape {text!r}: give text, such as '16x224x224'")
        parts = text.lower().split("x")
        if len(parts) == 2:
            parts.append(parts[1])
        if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
            raise ValueError(f"shape {text!r}: write frames x height x width, such as 16x224x224")
        return cls(*(int(part) for part in parts))

    @property
    def num_pixels(self) -> int:
        """T H W, what one clip costs up to the model's constant (equation 1)."""
        return self.frames * self.height * self.width

    def __str__(self) -> str:
        return f"{self.frames}x{self.height}x{self.width}"


@dataclass(frozen=True)
class ShapeRule:
    """What a model accepts: frames and sides in whole multiples, and a least size of each.

    A vision transformer wants its patch (``frame_multiple=2, side_multiple=16``), SlowFast a
    ``min_frames`` of its alpha.

    Args:
        frame_multiple: frames come in whole multiples of it.
        side_multiple: heights and widths do of this.
        min_frames: the fewest frames.
        min_side: the smallest height and width, in pixels.

    >>> patches = ShapeRule(frame_multiple=2, side_multiple=16)
    >>> print(patches.scale(Shape(16, 224, 224), frames=0.5, side=0.7))
    8x160x160
    """

    frame_multiple: int = 1
    side_multiple: int = 1
    min_frames: int = 1
    min_side: int = 1

    def __post_init__(self) -> None:
        for name in ("frame_multiple", "side_multiple", "min_frames", "min_side"):
            keep(self, **{name: whole_number(name, getattr(self, name))})

    def scale(self, shape: Shape, *, frames: float, side: float) -> Shape:
        """``shape`` times the factors, each size to the nearest multiple that is accepted.

        A baseline's own sizes are never changed. Raises ValueError if a size is not accepted.
        """
        return Shape(
            self._size("frames", shape.frames, frames),
            self._size("height", shape.height, side),
            self._size("width", shape.width, side),
        )

    def _size(self, name: str, size: int, factor: float) -> int:
        multiple = self.frame_multiple if name == "frames" else self.side_multiple
        least = self.min_frames if name == "frames" else self.min_side
        if size % multiple:
            raise ValueError(
                f"{name} {size}: the model takes multiples of {multiple}; use "
                f"{max(1, round_half_up(size / multiple)) * multiple}"
            )
        scaled = round_half_up(size * factor / multiple) * multiple
        if scaled == 0 or min(scaled, size * factor + _TOLERANCE) < least:
            raise ValueError(
                f"{name} {size} x {factor:.3g} is {size * factor:.3g}, and the model takes at "
                f"least {max(multiple, least)}; start from more {name}, or leave that factor out "
                f"of the cycle"
            )
        return scaled


def clip_name(shape: Shape | str, token_share: float) -> str:
    """``8x96x96``, or ``8x96x96@0.5`` of a clip that keeps half of its tokens."""
    return f"{shape}" if token_share == 1 else f"{shape}@{token_share:g}"


def stride_range(stride: int, *, base_frames: int, frames: int) -> tuple[int, int]:
    """The least and greatest temporal stride of a t-frame clip: [stride, stride * T / t].

    ``stride`` is the baseline's, ``base_frames`` its T, ``frames`` the clip's t; the upper end is
    rounded down (paper, section 4, Multigrid Training Details).
    """
    return stride, max(stride, stride * base_frames // frames)


def kept_tokens(count: int, share: float) -> int:
    """How many of ``count`` tokens a ``share`` of them is: at least one."""
    return max(1, round_half_up(count * share))


def round_half_up(number: float) -> int:
    """The nearest whole number, of two that are as near the larger one."""
    return math.floor(number + 0.5 + _TOLERANCE)
