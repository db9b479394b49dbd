"""Long and short cycles: from factors to the mini-batch shapes of the paper, section 3.2.

In: a baseline's shape and the factors of the two cycles. Out: for every base shape of the long
cycle, its batch and rate factors and the shapes that the short cycle visits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

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
    suits images (T = 1); ``((0.25, 1), (0.5, 1), (1, 1))`` a temporal one. Raises ValueError if the
    last shape is not the full grid with all tokens, or if shares do not sum to 1.

    Args:
        factors: of frames and sides, a pair for each shape.
        shares: of the steps, one a shape, which sum to 1; None gives every shape as many, as in the
            paper.
        batch_factors: multiples of B, one a shape; None takes equation 1 to the power of the batch
            exponent.
        rate_factors: of the rate, one a shape; None takes the batch factors to the power of the
            rate exponent.
        tokens: the share of a clip's tokens that a transformer keeps on each shape, all on the
            last; equation 1 counts those kept. None keeps all, as a model without tokens must.
        once: the run is a single pass over the shapes, instead of a cycle in every learning-rate
            stage.

    >>> LongCycle().last(2).factors
    ((0.5, 1.0), (1.0, 1.0))
    """

    factors: Factors = ((0.25, SQRT_HALF), (0.5, SQRT_HALF), (0.5, 1.0), (1.0, 1.0))
    shares: tuple[float, ...] | None = None
    batch_factors: tuple[int, ...] | None = None
    rate_factors: tuple[float, ...] | None = None
    once: bool = False
    tokens: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.factors or tuple(self.factors[-1]) != (1.0, 1.0):
            raise ValueError(
                f"long_cycle.factors {_listed(self.factors)}: a run ends on the full grid; make "
                f"[1, 1] the last"
            )
        _check_factors("long", self.factors)
        if self.shares is not None:
            self._check_each("shares", all(share > 0 for share in self.shares), "a share above 0")
            if abs(math.fsum(self.shares) - 1) > 1e-6:
                raise ValueError(
                    f"long_cycle.shares {_listed(self.shares)}: they sum to "
                    f"{math.fsum(self.shares):.6g}; give shares of the steps that sum to 1"
                )
        if self.batch_factors is not None:
            fit = all(isinstance(each, int) and each >= 1 for each in self.batch_factors)
            self._check_each("batch_factors", fit, "a whole number of at least 1")
        if self.rate_factors is not None:
            fit = all(0 < each < math.inf for each in self.rate_factors)
            self._check_each("rate_factors", fit, "a positive number")
        if self.tokens is not None:
            fit = all(0 < share <= 1 for share in self.tokens)
            self._check_each("tokens", fit, "a share above 0 and at most 1")
            if self.tokens[-1] != 1:
                raise ValueError(
                    f"long_cycle.tokens {_listed(self.tokens)}: a run ends with all tokens; make 1 "
                    f"the last"
                )

    def _check_each(self, name: str, fit: bool, what: str) -> None:
        values = getattr(self, name)
        if not fit or len(values) != len(self.factors):
            raise ValueError(
                f"long_cycle.{name} {_listed(values)}: give {what} for each of "
                f"{len(self.factors)} shapes, or null"
            )

    @property
    def weights(self) -> tuple[int, ...]:
        """The shares as whole numbers in the same proportion, exact as they were written."""
        if self.shares is None:
            return (1,) * len(self.factors)
        exact = [Fraction(repr(float(share))) for share in self.shares]
        whole = math.lcm(*(share.denominator for share in exact))
        return tuple(int(share * whole) for share in exact)

    def last(self, num_shapes: int) -> LongCycle:
        """The last ``num_shapes`` shapes (S' of table 1a), in the same proportions."""
        first = _last(num_shapes, len(self.factors), "long")
        shares = self.shares and self.shares[first:]
        return LongCycle(
            self.factors[first:],
            shares=shares and tuple(share / math.fsum(shares) for share in shares),
            batch_factors=self.batch_factors and self.batch_factors[first:],
            rate_factors=self.rate_factors and self.rate_factors[first:],
            once=self.once,
            tokens=self.tokens and self.tokens[first:],
        )


@dataclass(frozen=True)
class ShortCycle:
    """Factors of the baseline's (frames, side); after them comes the long cycle's own shape.

    The default is the paper's for step i: H/2 for i mod 3 = 0, H/sqrt(2) for 1, else the base
    shape. No size is ever larger than the base shape's, so a factor of 1 leaves a size as it is.

    Args:
        factors: of frames and sides, a pair for each shape before the base shape.

    >>> ShortCycle(((1.0, 0.5),)).last(1).factors
    ()
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
                f"{cycle}_cycle.factors {_listed(pair)}: give one for the frames and one for the "
                f"height and width, each above 0 and at most 1"
            )


def _listed(values: object) -> str:
    """Nested tuples as a flag takes them: [[0.5, 1], [1, 1]]."""
    if isinstance(values, tuple | list):
        return f"[{', '.join(map(_listed, values))}]"
    return f"{values:g}" if isinstance(values, float) else str(values)


def _last(num_shapes: int, available: int, cycle: str) -> int:
    if not 1 <= num_shapes <= available:
        raise ValueError(
            f"{cycle}-cycle shapes {num_shapes}: choose 1 to {available}, the shapes of this cycle"
        )
    return available - num_shapes


FULL_GRID = LongCycle(((1.0, 1.0),))
"""No long cycle: the baseline's shape throughout."""


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
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: give a number of at least 1")

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


@dataclass(frozen=True)
class ShortShape:
    """One position of the short cycle.

    ``batch_size`` is ``batch_factor`` times B, the baseline's; ``norm_group`` is in clips, None
    without norm groups; ``token_share`` of its tokens are kept.
    """

    shape: Shape
    batch_factor: int
    batch_size: int
    norm_group: int | None
    token_share: float = 1.0


@dataclass(frozen=True)
class BaseShape:
    """One base shape of the long cycle and its short cycle, which ends with the shape itself.

    ``rate_factor`` scales the learning rate on all of them.
    """

    short_cycle: tuple[ShortShape, ...]
    rate_factor: float

    @property
    def shape(self) -> Shape:
        """The base shape itself."""
        return self.short_cycle[-1].shape

    @property
    def batch_factor(self) -> int:
        """Of the base shape itself, relative to B."""
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
    def token_share(self) -> float:
        """Of the tokens, kept on every shape of the short cycle."""
        return self.short_cycle[-1].token_share

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
    rate_exponent: float,
    norm_group: int | None,
) -> tuple[BaseShape, ...]:
    """The shapes of a long cycle, coarse to fine, each with its short cycle.

    A shape's batch is B times a whole number: equation 1 against the baseline's shape, to the power
    ``batch_exponent`` and rounded once, so that a shape has the same batch wherever it is visited;
    or the long cycle's own batch factor, by which equation 1 goes on for the short cycle. If
    the short cycle enlarges a batch, the norm group grows with it (section 3.2), by a whole number
    that divides the batch into whole groups. A short-cycle shape is never larger than its base.
    Of a clip that keeps a share of its tokens, equation 1 counts that share.
    """
    long_cycle = long_cycle or FULL_GRID
    pairs = [*(short_cycle.factors if short_cycle else ()), (1.0, 1.0)]
    rows = []
    for place, (frames, side) in enumerate(long_cycle.factors):
        base = rule.scale(shape, frames=frames, side=side)
        given = long_cycle.batch_factors and long_cycle.batch_factors[place]
        tokens = long_cycle.tokens[place] if long_cycle.tokens else 1.0
        shorts = []
        for near_frames, near_side in pairs:
            near = rule.scale(shape, frames=min(frames, near_frames), side=min(side, near_side))
            if given:
                factor = _batch_factor(near, base, batch_exponent, times=given)
            else:
                factor = _batch_factor(near, shape, batch_exponent, tokens=tokens)
            growth = _largest_divisor(factor, at_most=_batch_factor(near, base, batch_exponent))
            group = None if norm_group is None else norm_group * growth
            shorts.append(ShortShape(near, factor, batch_size * factor, group, tokens))
        rate = long_cycle.rate_factors and long_cycle.rate_factors[place]
        rate_factor = rate or math.pow(shorts[-1].batch_factor, rate_exponent)
        rows.append(BaseShape(tuple(shorts), rate_factor))
    return tuple(rows)


def are_cycles(shapes: tuple[BaseShape, ...]) -> bool:
    """Whether a run on these base shapes ever changes its shape."""
    return len(shapes) > 1 or len(shapes[-1].short_cycle) > 1


def _batch_factor(
    coarse: Shape, fine: Shape, exponent: float, *, times: int = 1, tokens: float = 1.0
) -> int:
    """How many times the clips of ``fine`` make a batch of ``coarse``: equation 1."""
    ratio = fine.num_pixels / (coarse.num_pixels * tokens)
    return max(1, round_half_up(times * math.pow(ratio, exponent)))


def _largest_divisor(number: int, *, at_most: int) -> int:
    return next(each for each in range(at_most, 0, -1) if number % each == 0)


def kept_tokens(count: int, share: float) -> int:
    """How many of ``count`` tokens a ``share`` of them is: at least one."""
    return max(1, round_half_up(count * share))


def round_half_up(number: float) -> int:
    """The nearest whole number, of two that are as near the larger one."""
    return math.floor(number + 0.5 + _TOLERANCE)
