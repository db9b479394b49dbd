"""The shape of a clip: frames x height x width.

In: numbers, or text such as ``16x224x224``. Out: a value that the plan, the data path and the
models share. Scaling a shape by a grid factor rounds it to what a model accepts (paper, section
3.1, footnote 3: W / sqrt(2) is no whole number).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Shape:
    """T x H x W of one clip, in frames and pixels.

    Args:
        frames: T.
        height: H, in pixels.
        width: W, in pixels.

    >>> shape = Shape.parse("16x224x224")
    >>> shape.frames, shape.num_pixels
    (16, 802816)
    """

    frames: int
    height: int
    width: int

    def __post_init__(self) -> None:
        for name in ("frames", "height", "width"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} {value}: give a whole number of at least 1")

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read ``TxHxW``, or ``TxS`` for a square; raises ValueError if the text is neither."""
        parts = text.lower().split("x")
        if len(parts) == 2:
            parts.append(parts[1])
        if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
            raise ValueError(f"shape {text!r}: write frames x height x width, such as 16x224x224")
        return cls(*(int(part) for part in parts))

    @property
    def num_pixels(self) -> int:
        """T H W, what one clip costs up to the model's constant (equation 1)."""
        return self.frames * self.height * self.width

    def __str__(self) -> str:
        return f"{self.frames}x{self.height}x{self.width}"


def clip_name(shape: Shape | str, token_share: float) -> str:
    """``8x96x96``, or ``8x96x96@0.5`` of a clip that keeps half of its tokens."""
    return f"{shape}" if token_share == 1 else f"{shape}@{token_share:g}"


def stride_range(stride: int, *, base_frames: int, frames: int) -> tuple[int, int]:
    """The least and greatest temporal stride of a t-frame clip: [stride, stride * T / t].

    ``stride`` is the baseline's, ``base_frames`` its T, ``frames`` the clip's t; the upper end is
    rounded down (paper, section 4, Multigrid Training Details).
    """
    return stride, max(stride, stride * base_frames // frames)
