"""Iso-accuracy: how many times less a method costs than the baseline for the same result.

In: two curves, each of whole runs with schedules of their own: cost and score of every length, in
cells of (seed, fold). Out: the horizontal distance between the curves at the level that the whole
baseline reaches, with a bootstrap interval over folds and seeds.

A curve is the mean over the cells, made monotone (a longer run is never worse: neighbours that
contradict this are pooled), and straight between its points over the logarithm of the cost. It is
never extended beyond its points: a level above them all is 'not reached', and its longest run gives
a bound instead of a number.

A bootstrap of few folds is too sure of itself: 2.5% of the samples of three are one fold thrice, so
that no interval goes beyond the best and the worst of them. Where folds differ by as much as seeds
or more, its 95% are the truth in about three of four studies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Cell = tuple[int, int]
"""Seed and fold."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Rising costs, and the scores of each length's cells; higher is better."""

    costs: tuple[float, ...]
    scores: tuple[Mapping[Cell, float], ...]

    def restricted(self, cells: Sequence[Cell]) -> Curve:
        """The lengths that are complete in all of ``cells``."""
        kept = [
            (cost, scores)
            for cost, scores in zip(self.costs, self.scores, strict=True)
            if all(cell in scores for cell in cells)
        ]
        return Curve(tuple(cost for cost, _ in kept), tuple(scores for _, scores in kept))

    def up_to(self, cost: float) -> Curve:
        """The lengths that cost no more."""
        kept = [each for each in zip(self.costs, self.scores, strict=True) if each[0] <= cost]
        return Curve(tuple(cost for cost, _ in kept), tuple(scores for _, scores in kept))

    def means(self, cells: Sequence[Cell], weights: Floats) -> Floats:
        """(samples, lengths) monotone means over ``cells`` for (samples, cells) ``weights``."""
        table = np.array([[scores[cell] for cell in cells] for scores in self.scores])
        return np.array([monotone(means) for means in weights @ table.T])


@dataclass(frozen=True)
class Speedup:
    """Baseline's cost over the method's at the baseline's final score.

    ``factor`` is None if the method's runs do not reach it: they save less than ``bound`` times.
    With ``at_least`` its shortest run reaches it already, so ``factor`` is a lower bound. ``low``
    and ``high`` are the 95% interval's ends, None if there is one cell only, or if they are open:
    the lower one where the level is not reached, the upper one where the shortest run is above it.
    ``reached`` is the share of the resamples that reach it.
    """

    factor: float | None
    low: float | None
    high: float | None
    bound: float
    at_least: bool
    reached: float
    cells: int


def iso_speedup(
    baseline: Curve, method: Curve, *, whole: float, resamples: int = 2000, seed: int = 0
) -> Speedup | None:
    """The method's saving; None if no cell has the whole baseline and a run of the method.

    ``whole`` is the cost of the baseline's run whose score is to be reached.
    """
    cells = common_cells(baseline, method, whole=whole)
    if not cells:
        return None
    baseline, method = baseline.restricted(cells), method.restricted(cells)
    # The first sample is every cell once: the estimate itself.
    weights = np.vstack([equal(cells), resampled(cells, resamples, seed=seed)])
    # A longer baseline does not move the level, were it worse.
    baseline = baseline.up_to(whole)
    ours, theirs = method.means(cells, weights), baseline.means(cells, weights)
    levels = theirs[:, baseline.costs.index(whole)]
    factors = np.array(
        [
            cost_of(level, baseline.costs, their) / cost_of(level, method.costs, our)
            for level, their, our in zip(levels, theirs, ours, strict=True)
        ]
    )
    factor, drawn = float(factors[0]), factors[1:]
    highest = np.where(ours[1:, 0] >= levels[1:], math.inf, drawn)
    low = float(np.quantile(drawn, 0.025, method="nearest"))
    high = float(np.quantile(highest, 0.975, method="nearest"))
    one = len(cells) == 1
    return Speedup(
        factor=factor or None,
        low=None if one else low or None,
        high=None if one or math.isinf(high) else high or None,
        bound=whole / method.costs[-1],
        at_least=bool(ours[0, 0] >= levels[0]),
        reached=float(np.mean(drawn > 0)),
        cells=len(cells),
    )


def gain_at_equal_cost(
    baseline: Curve,
    method: Curve,
    place: int,
    *,
    whole: float,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float, int] | None:
    """Score of the method's length ``place`` less the baseline's at its cost.

    Mean, low, high, and the number of cells compared. A length that costs up to a tenth less than
    the shortest baseline is compared with that. None for other lengths outside the baseline's
    costs, and if no cell has both.
    """
    point = Curve((method.costs[place],), (method.scores[place],))
    cells = common_cells(baseline, point, whole=whole)
    baseline = baseline.restricted(cells)
    cost = point.costs[0]
    if not cells or not 0.9 * baseline.costs[0] <= cost <= baseline.costs[-1]:
        return None
    weights = np.vstack([equal(cells), resampled(cells, resamples, seed=seed)])
    theirs = baseline.means(cells, weights)
    levels = [np.interp(math.log(cost), np.log(baseline.costs), their) for their in theirs]
    gains = point.means(cells, weights)[:, 0] - levels
    low, high = np.quantile(gains[1:], (0.025, 0.975))
    return float(gains[0]), float(low), float(high), len(cells)


def common_cells(baseline: Curve, method: Curve, *, whole: float) -> list[Cell]:
    """The cells of the whole baseline that the method's most complete length has too."""
    if whole not in baseline.costs or not method.costs:
        return []
    there = set(baseline.scores[baseline.costs.index(whole)])
    most = max((there & set(scores) for scores in method.scores), key=len)
    return sorted(most)


def equal(cells: Sequence[Cell]) -> Floats:
    """(1, cells) weights that give every fold the same, and within it every seed."""
    folds = [fold for _, fold in cells]
    return np.array([[1 / (len(set(folds)) * folds.count(fold)) for fold in folds]])


def resampled(cells: Sequence[Cell], times: int, *, seed: int) -> Floats:
    """(times, cells) weights of bootstrap samples: folds drawn, then seeds of each drawn fold."""
    rng = np.random.default_rng(seed)
    folds = sorted({fold for _, fold in cells})
    places = [[i for i, cell in enumerate(cells) if cell[1] == fold] for fold in folds]
    weights = np.zeros((times, len(cells)))
    for sample in weights:
        for number in rng.integers(0, len(folds), len(folds)):
            own = places[number]
            for draw in rng.integers(0, len(own), len(own)):
                sample[own[draw]] += 1 / (len(folds) * len(own))
    return weights


def monotone(values: Sequence[float] | Floats) -> Floats:
    """The nearest sequence that never falls (least squares, pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (left, n), (right, m) = pools[-2:]
            pools[-2:] = [((left * n + right * m) / (n + m), n + m)]
    return np.repeat([mean for mean, _ in pools], [size for _, size in pools])


def cost_of(level: float, costs: Sequence[float], means: Floats) -> float:
    """The least cost at which a monotone curve reaches ``level``; infinite if it does not."""
    place = int(np.searchsorted(means, level - 1e-12))
    if place == len(means):
        return math.inf
    if place == 0:
        return costs[0]
    share = (level - means[place - 1]) / (means[place] - means[place - 1])
    lower, upper = math.log(costs[place - 1]), math.log(costs[place])
    return math.exp(lower + share * (upper - lower))
