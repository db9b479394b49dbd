"""The long and the short cycle as a user writes them: factors of the baseline's shape.

In: numbers from a configuration or a program. Out: two checked values, of which the shapes of the
mini-batches follow (paper, section 3.2 and table 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from vcycle.schedule.arguments import as_tuple, keep, truth

SQRT_HALF = math.sqrt(0.5)

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
        keep(self, factors=_factors("long", self.factors))
        keep(self, once=truth("long_cycle.once", self.once))
        for name in ("shares", "batch_factors", "rate_factors", "tokens"):
            if getattr(self, name) is not None:
                values = as_tuple(f"long_cycle.{name}", getattr(self, name), example="(0.5, 0.5)")
                keep(self, **{name: values})
        if not self.factors or tuple(self.factors[-1]) != (1.0, 1.0):
            raise ValueError(
                f"long_cycle.factors {_listed(self.factors)}: a run ends on the full grid; make "
                f"[1, 1] the last"
            )
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
        sizes = [frames * side * side for frames, side in self.factors]
        if self.once and any(large > 1.001 * small for large, small in pairwise(sizes)):
            raise ValueError(
                f"long_cycle.factors {_listed(self.factors)}: a single pass goes from coarse to "
                f"fine; give the shapes in that order"
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
        keep(self, factors=_factors("short", self.factors))

    def last(self, num_shapes: int) -> ShortCycle:
        """The last ``num_shapes`` shapes, the base shape counted (table 1b)."""
        return ShortCycle(self.factors[_last(num_shapes, len(self.factors) + 1, "short") :])


def _factors(cycle: str, given: Factors) -> Factors:
    """As tuples; raises ValueError unless each is a pair of factors up to 1."""
    factors = as_tuple(f"{cycle}_cycle.factors", given, example="((0.5, 0.5), (1.0, 1.0))")
    for pair in factors:
        if (
            not isinstance(pair, tuple)
            or len(pair) != 2
            or not all(0 < factor <= 1 for factor in pair)
        ):
            raise ValueError(
                f"{cycle}_cycle.factors {_listed(pair)}: give one for the frames and one for the "
                f"height and width, each above 0 and at most 1"
            )
    return factors


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
