"""Iso-accuracy: how many times less a method costs than the baseline for the same result.

In: two curves, each of whole runs with schedules of their own: cost and score of every length, in
cells of (seed, fold). Out: the horizontal distance between the curves at the level that the whole
baseline reaches, with a bootstrap interval over folds and seeds.

Every score counts as its difference to that of the whole baseline in the same cell: what cells
differ by leaves no trace, and lengths may have run in different ones. A curve is the mean of the
differences over cells, made monotone (a longer run is never worse: neighbours that contradict this
are pooled), and straight between its points over the logarithm of the cost. It is never extended
beyond its points: a level above them all is 'not reached', and its longest run gives a bound
instead of a number.

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

    def beyond(self, level: Mapping[Cell, float]) -> Curve:
        """The differences to ``level`` in its cells, of the lengths that have any there."""
        pairs = [
            (cost, {cell: score - level[cell] for cell, score in scores.items() if cell in level})
            for cost, scores in zip(self.costs, self.scores, strict=True)
        ]
        return _curve([pair for pair in pairs if pair[1]])

    def of_folds(self, folds: set[int]) -> Curve:
        """The lengths that have run in all of ``folds``, and what they did there."""
        pairs = [
            (cost, {cell: score for cell, score in scores.items() if cell[1] in folds})
            for cost, scores in zip(self.costs, self.scores, strict=True)
            if folds <= _folds(scores)
        ]
        return _curve(pairs)

    def up_to(self, cost: float) -> Curve:
        """The lengths that cost no more."""
        pairs = zip(self.costs, self.scores, strict=True)
        return _curve([pair for pair in pairs if pair[0] <= cost])

    def means(self, cells: Sequence[Cell], weights: Floats) -> Floats:
        """(samples, lengths) monotone means for (samples, cells) ``weights``.

        A length that lacks a fold's drawn seeds counts with all that it has there.
        """
        folds = np.array([fold for _, fold in cells])
        table = np.empty((len(weights), len(self.scores)))
        for number, scores in enumerate(self.scores):
            has = np.array([cell in scores for cell in cells])
            values = np.array([scores.get(cell, 0.0) for cell in cells])
            table[:, number] = 0.0
            for fold in np.unique(folds):
                drawn, own = weights[:, folds == fold], has[folds == fold]
                kept = drawn * own
                kept = np.where(kept.sum(1, keepdims=True) > 0, kept, own.astype(float))
                means = kept @ values[folds == fold] / kept.sum(1)
                table[:, number] += drawn.sum(1) * means
        return np.array([monotone(means) for means in table])


def _curve(pairs: Sequence[tuple[float, Mapping[Cell, float]]]) -> Curve:
    return Curve(tuple(cost for cost, _ in pairs), tuple(scores for _, scores in pairs))


def _folds(cells: Mapping[Cell, float]) -> set[int]:
    return {fold for _, fold in cells}


@dataclass(frozen=True)
class Speedup:
    """Baseline's cost over the method's at the baseline's final score.

    ``factor`` is None if the method's runs do not reach it: they save less than ``bound`` times.
    With ``at_least`` its shortest run reaches it already, so ``factor`` is a lower bound. ``low``
    and ``high`` are the 95% interval's ends, None if there is one cell only, or if they are open:
    the lower one where the level is not reached, the upper one where the shortest run is above it.
    ``reached`` is the share of the resamples that reach it. ``cells`` are those of the method's
    most complete length, ``fewest`` those of its least complete one.
    """

    factor: float | None
    low: float | None
    high: float | None
    bound: float
    at_least: bool
    reached: float
    cells: int
    fewest: int


def iso_speedup(
    baseline: Curve, method: Curve, *, whole: float, resamples: int = 2000, seed: int = 0
) -> Speedup | None:
    """The method's saving; None if no cell has the whole baseline and a run of the method.

    ``whole`` is the cost of the baseline's run whose score is to be reached. The lengths of the
    method that ran in fewer folds than another are left out, and so are the baseline's.
    """
    level = _level(baseline, whole)
    ours = method.beyond(level)
    if not ours.costs:
        return None
    folds = max((_folds(scores) for scores in ours.scores), key=len)
    ours = ours.of_folds(folds)
    # A longer baseline does not move the level, were it worse.
    theirs = baseline.up_to(whole).beyond(level).of_folds(folds)
    cells = sorted({cell for scores in (*ours.scores, *theirs.scores) for cell in scores})
    # The first sample is every cell once: the estimate itself.
    weights = np.vstack([equal(cells), resampled(cells, resamples, seed=seed)])
    our_means, their_means = ours.means(cells, weights), theirs.means(cells, weights)
    levels = their_means[:, theirs.costs.index(whole)]
    factors = np.array(
        [
            cost_of(level, theirs.costs, their) / cost_of(level, ours.costs, our)
            for level, their, our in zip(levels, their_means, our_means, strict=True)
        ]
    )
    factor, drawn = float(factors[0]), factors[1:]
    highest = np.where(our_means[1:, 0] >= levels[1:], math.inf, drawn)
    low = float(np.quantile(drawn, 0.025, method="nearest"))
    high = float(np.quantile(highest, 0.975, method="nearest"))
    numbers = [len(scores) for scores in ours.scores]
    one = max(numbers) == 1
    return Speedup(
        factor=factor or None,
        low=None if one else low or None,
        high=None if one or math.isinf(high) else high or None,
        bound=whole / ours.costs[-1],
        at_least=bool(our_means[0, 0] >= levels[0]),
        reached=float(np.mean(drawn > 0)),
        cells=max(numbers),
        fewest=min(numbers),
    )


def gain_at_equal_cost(
    baseline: Curve,
    method: Curve,
    place: int,
    *,
    whole: float,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float | None, float | None, int] | None:
    """Score of the method's length ``place`` less the baseline's at its cost.

    Mean, low, high (None of one cell), and the number of cells compared. A length that costs up to
    a tenth less than the shortest baseline is compared with that. None for other lengths outside
    the baseline's costs, and if no cell has both.
    """
    level = _level(baseline, whole)
    point = Curve((method.costs[place],), (method.scores[place],)).beyond(level)
    if not point.costs:
        return None
    theirs = baseline.beyond(level).of_folds(_folds(point.scores[0]))
    cost = point.costs[0]
    if not 0.9 * theirs.costs[0] <= cost <= theirs.costs[-1]:
        return None
    cells = sorted({cell for scores in (*point.scores, *theirs.scores) for cell in scores})
    weights = np.vstack([equal(cells), resampled(cells, resamples, seed=seed)])
    means = theirs.means(cells, weights)
    levels = [np.interp(math.log(cost), np.log(theirs.costs), each) for each in means]
    gains = point.means(cells, weights)[:, 0] - levels
    number = len(point.scores[0])
    low, high = (float(end) for end in np.quantile(gains[1:], (0.025, 0.975)))
    return float(gains[0]), *((None, None) if number == 1 else (low, high)), number


def _level(baseline: Curve, whole: float) -> Mapping[Cell, float]:
    """The scores of the baseline's run of that cost; empty if there is none."""
    return baseline.scores[baseline.costs.index(whole)] if whole in baseline.costs else {}


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
