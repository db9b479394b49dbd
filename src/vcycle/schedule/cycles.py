"""Long and short cycles: from factors to the mini-batch shapes of the paper, section 3.2.

In: a baseline's shape and the factors of the two cycles. Out: for every base shape of the long
cycle, its batch factor and the shapes that the short cycle visits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vcycle.schedule.shape import Shape

SQRT_HALF = math.sqrt(0.5)
_TOLERANCE = 1e-9
"""Of products such as 0.29 * 100, which lies just below 29."""


Factors = tuple[tuple[float, float], ...]  # (of the frames, of the height and width)


@dataclass(frozen=True)
class LongCycle:
    """Base shapes as factors of the baseline's (frames, side), coarse to fine.

    The default is the paper's: 8B x T/4 x H/sqrt(2), 4B x T/2 x H/sqrt(2), 2B x T/2 x H,
    B x T x H (widths as heights). ``((1, 0.5), (1, 0.71), (1, 1))`` is a spatial cycle, which
    suits images (T = 1); ``((0.25, 1), (0.5, 1), (1, 1))`` a temporal one.
    """

    factors: Factors = ((0.25, SQRT_HALF), (0.5, SQRT_HALF), (0.5, 1.0), (1.0, 1.0))

    def __post_init__(self) -> None:
        if not self.factors or tuple(self.factors[-1]) != (1.0, 1.0):
            raise ValueError(
                f"long-cycle factors {self.factors}: the last shape must be the baseline's, (1, 1)"
            )
        _check_factors("long", self.factors)

    def last(self, num_shapes: int) -> LongCycle:
        """The last ``num_shapes`` shapes (S' of table 1a)."""
        return LongCycle(self.factors[_last(num_shapes, len(self.factors), "long") :])


@dataclass(frozen=True)
class ShortCycle:
    """Factors of the baseline's (frames, side); after them comes the long cycle's own shape.

    The default is the paper's for step i: H/2 for i mod 3 = 0, H/sqrt(2) for 1, else the base
    shape. No size is ever larger than the base shape's, so a factor of 1 leaves a size as it is.
    """

    factors: Factors = ((1.0, 0.5), (1.0, SQRT_HALF))

    def __post_init__(self) -> None:
        _check_factors("short", self.factors)

    def last(self, num_shapes: int) -> ShortCycle:
        """The last ``num_shapes`` shapes, the base shape counted (table 1b)."""
        return ShortCycle(self.factors[_last(num_shapes, len(self.factors) + 1, "short") :])


def _check_factors(cycle: str, factors: Factors) -> None:
    for pair in factors:
        if len(pair) != 2 or not all(0 < factor <= 1 for factor in pair):
            raise ValueError(
                f"{cycle}-cycle factors {pair}: give one for the frames and one for the height "
                f"and width, each above 0 and at most 1"
            )


def _last(num_shapes: int, available: int, cycle: str) -> int:
    if not 1 <= num_shapes <= available:
        raise ValueError(
            f"{cycle}-cycle shapes {num_shapes}: choose 1 to {available}, the shapes of this cycle"
        )
    return available - num_shapes


@dataclass(frozen=True)
class ShapeRule:
    """What a model accepts: frames and sides in whole multiples, and a least size of each.

    A vision transformer wants its patch (``frame_multiple=2, side_multiple=16``), SlowFast a
    ``min_frames`` of its alpha.
    """

    frame_multiple: int = 1
    side_multiple: int = 1
    min_frames: int = 1
    min_side: int = 1

    def __post_init__(self) -> None:
        for name in ("frame_multiple", "side_multiple", "min_frames", "min_side"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: give a number of at least 1")

    def scale(self, shape: Shape, *, frames: float, side: float) -> Shape:
        """``shape`` times the factors, each size to the nearest multiple that is accepted.

        A baseline's own sizes are never changed; ValueError where a size is not accepted.
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


@dataclass(frozen=True)
class ShortShape:
    """One position of the short cycle.

    ``batch_size`` is ``batch_factor`` times B, the baseline's; ``norm_group`` is in clips, None
    without norm groups.
    """

    shape: Shape
    batch_factor: int
    batch_size: int
    norm_group: int | None


@dataclass(frozen=True)
class BaseShape:
    """One base shape of the long cycle and its short cycle, which ends with the shape itself."""

    short_cycle: tuple[ShortShape, ...]

    @property
    def shape(self) -> Shape:
        """The base shape itself."""
        return self.short_cycle[-1].shape

    @property
    def batch_factor(self) -> int:
        """Of the base shape itself, relative to B: what scales the learning rate."""
        return self.short_cycle[-1].batch_factor

    def at(self, step: int) -> ShortShape:
        """What the short cycle visits at ``step`` of the whole run: its counter never restarts."""
        return self.short_cycle[step % len(self.short_cycle)]

    def counts(self, first_step: int, end_step: int) -> tuple[int, ...]:
        """How often steps ``first_step`` to ``end_step`` (not counted) visit each position."""
        period = len(self.short_cycle)
        return tuple(
            (end_step + ahead) // period - (first_step + ahead) // period
            for ahead in range(period - 1, -1, -1)
        )

    def clips(self, first_step: int, end_step: int) -> int:
        """Clips that steps ``first_step`` to ``end_step`` (not counted) of the run consume."""
        counts = self.counts(first_step, end_step)
        return sum(
            count * short.batch_size for count, short in zip(counts, self.short_cycle, strict=True)
        )

    @property
    def batch_size(self) -> int:
        """Clips of a step on the base shape itself."""
        return self.short_cycle[-1].batch_size

    @property
    def mean_batch_size(self) -> float:
        """Clips of a step, averaged over the short cycle."""
        return sum(short.batch_size for short in self.short_cycle) / len(self.short_cycle)


def base_shapes(
    shape: Shape,
    batch_size: int,
    *,
    long_cycle: LongCycle | None,
    short_cycle: ShortCycle | None,
    rule: ShapeRule,
    batch_exponent: float,
    norm_group: int | None,
) -> tuple[BaseShape, ...]:
    """The shapes of a long cycle, coarse to fine, each with its short cycle.

    A shape's batch is B times a whole number: equation 1 against the baseline's shape, to the power
    ``batch_exponent`` and rounded once, so that a shape has the same batch wherever it is visited.
    Where the short cycle enlarges a batch, the norm group grows with it (section 3.2), by a whole
    number that divides the batch into whole groups. A short-cycle shape is never larger than its
    base shape.
    """
    pairs = [*(short_cycle.factors if short_cycle else ()), (1.0, 1.0)]
    rows = []
    for frames, side in (long_cycle or LongCycle(((1.0, 1.0),))).factors:
        base = rule.scale(shape, frames=frames, side=side)
        shorts = []
        for near_frames, near_side in pairs:
            near = rule.scale(shape, frames=min(frames, near_frames), side=min(side, near_side))
            factor = _batch_factor(near, shape, batch_exponent)
            growth = _largest_divisor(factor, at_most=_batch_factor(near, base, batch_exponent))
            group = None if norm_group is None else norm_group * growth
            shorts.append(ShortShape(near, factor, batch_size * factor, group))
        rows.append(BaseShape(tuple(shorts)))
    return tuple(rows)


def are_cycles(shapes: tuple[BaseShape, ...]) -> bool:
    """Whether a run on these base shapes ever changes its shape."""
    return len(shapes) > 1 or len(shapes[-1].short_cycle) > 1


def _batch_factor(coarse: Shape, fine: Shape, exponent: float) -> int:
    """How many times the clips of ``fine`` make a batch of ``coarse``: equation 1."""
    return max(1, round_half_up(math.pow(fine.num_pixels / coarse.num_pixels, exponent)))


def _largest_divisor(number: int, *, at_most: int) -> int:
    return next(each for each in range(at_most, 0, -1) if number % each == 0)


def round_half_up(number: float) -> int:
    """The nearest whole number, of two that are as near the larger one."""
    return math.floor(number + 0.5 + _TOLERANCE)
