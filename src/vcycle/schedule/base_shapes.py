"""Base shapes: from the factors of the two cycles to mini-batch shapes (paper, section 3.2).

In: a Baseline and a Multigrid. Out: for every base shape of the long cycle, its batch and rate
factors and the shapes that the short cycle visits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vcycle.schedule.baseline import Baseline
from vcycle.schedule.cycles import FULL_GRID
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape, round_half_up


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


def base_shapes(baseline: Baseline, multigrid: Multigrid) -> tuple[BaseShape, ...]:
    """The shapes of a long cycle, coarse to fine, each with its short cycle.

    A shape's batch is B times a whole number: equation 1 against the baseline's shape, to the power
    ``batch_exponent`` and rounded once, so that a shape has the same batch wherever it is visited;
    or the long cycle's own batch factor, by which equation 1 goes on for the short cycle. If
    the short cycle enlarges a batch, the norm group grows with it (section 3.2), by a whole number
    that divides the batch into whole groups. A short-cycle shape is never larger than its base.
    Of a clip that keeps a share of its tokens, equation 1 counts that share.
    """
    long_cycle = multigrid.long_cycle or FULL_GRID
    short_cycle, norm_group = multigrid.short_cycle, multigrid.norm_group
    shape, rule, exponent = baseline.shape, multigrid.rule, multigrid.batch_exponent
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
                factor = _batch_factor(near, base, exponent, times=given)
            else:
                factor = _batch_factor(near, shape, exponent, tokens=tokens)
            clips, group = baseline.batch_size * factor, norm_group
            if norm_group is not None and clips % norm_group == 0:
                groups = math.gcd(factor, clips // norm_group)
                most = _batch_factor(near, base, exponent)
                group = norm_group * _largest_divisor(groups, at_most=most)
            shorts.append(ShortShape(near, factor, clips, group, tokens))
        rate = long_cycle.rate_factors and long_cycle.rate_factors[place]
        rate_factor = rate or math.pow(shorts[-1].batch_factor, multigrid.rate_exponent)
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
