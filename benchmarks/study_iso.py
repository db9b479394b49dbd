"""Iso-accuracy: how many times less a method costs than the baseline for the same result.

In: two curves, each of whole runs with schedules of their own: cost and score of every length, in
cells of (seed, fold). Out: the horizontal distance between the curves at the level that the whole
baseline reaches, with a bootstrap interval over folds and seeds.

A curve is the mean over folds of the mean over each fold's seeds, made monotone (a longer run is
never worse: neighbours that contradict this are pooled), and straight between its points over the
logarithm of the cost. Lengths may have run in different seeds, as from random weights the same seed
of two methods is hardly more alike than two seeds; all that are compared have run in the same
folds. Runs that start from other weights are compared with those from the same weights, of the same
fold, alone. A curve is never extended beyond its points: a level above them all is
'not reached', and its longest run gives a bound instead of a number.

A resample draws folds, the same for all lengths, and in each drawn fold the noise of as many seeds
as a length has there, from its own runs' differences to the mean of their fold, as short runs may
differ by more than long ones; or, where a length has few of them, from those of all lengths: so a
length of one seed is not taken for exact. What folds and seeds differ by is multiplied by
sqrt(n / (n - 1)): deviations from the mean of the same n are too small. A bootstrap of three folds
is too sure of itself all the same: see ``tests/benchmarks/test_study_iso.py`` for how often its 95%
are the truth.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Fold = int | tuple[int, int]
"""A fold; or a fold, and the seed of the weights that its runs start from."""
Cell = tuple[int, Fold]
"""Seed and fold."""
Floats = NDArray[np.float64]
_FEW = 6
"""Runs of a length that has fold-mates: two seeds of three folds."""
_RESAMPLES = 10_000
"""So many that another seed of the generator changes no verdict."""


@dataclass(frozen=True)
class Curve:
    """Rising costs, and the scores of each length's cells; higher is better."""

    costs: tuple[float, ...]
    scores: tuple[Mapping[Cell, float], ...]

    def in_folds(self, folds: set[Fold]) -> Curve:
        """The lengths that have run in all of ``folds``, and what they did there."""
        return _curve(
            [
                (cost, {cell: score for cell, score in scores.items() if cell[1] in folds})
                for cost, scores in zip(self.costs, self.scores, strict=True)
                if folds <= _folds(scores)
            ]
        )

    def weights_as_seeds(self) -> Curve:
        """The same runs, those from several weights as so many seeds of their fold."""
        return _curve(
            [
                (cost, {_weights_as_seed(cell): score for cell, score in scores.items()})
                for cost, scores in zip(self.costs, self.scores, strict=True)
            ]
        )

    def up_to(self, cost: float) -> Curve:
        """The lengths that cost no more."""
        pairs = zip(self.costs, self.scores, strict=True)
        return _curve([pair for pair in pairs if pair[0] <= cost])

    def of_fold(self, fold: Fold) -> list[list[float]]:
        """The scores of each length's seeds."""
        return [
            [score for (_, each), score in scores.items() if each == fold] for scores in self.scores
        ]


def _curve(pairs: Sequence[tuple[float, Mapping[Cell, float]]]) -> Curve:
    return Curve(tuple(cost for cost, _ in pairs), tuple(scores for _, scores in pairs))


def _weights_as_seed(cell: Cell) -> Cell:
    seed, fold = cell
    return (seed, fold) if isinstance(fold, int) else (fold[1], fold[0])


def _folds(cells: Mapping[Cell, float]) -> set[Fold]:
    return {fold for _, fold in cells}


@dataclass(frozen=True)
class Speedup:
    """Baseline's cost over the method's at the baseline's final score.

    ``factor`` is None if the method's runs do not reach it: they save less than ``bound`` times.
    With ``at_least`` its shortest run reaches it already, so ``factor`` is a lower bound. ``low``
    and ``high`` are the 95% interval's ends, None if there is one run only, or if they are open:
    the lower one where the level is not reached, the upper one where the shortest run is above it.
    ``reached`` is the share of the resamples that reach it. ``cells`` are the runs of the method's
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


@dataclass(frozen=True)
class Gain:
    """A method's score less the baseline's at equal cost; higher is better.

    ``low`` and ``high`` are the 95% interval's ends, None of one run. ``cells`` are the method's
    runs there, ``lengths`` those of the baseline that make its curve there, and ``folds`` the gains
    in each fold, over the baseline's curve of that fold: their mean is near ``mean``, not equal.
    """

    mean: float
    low: float | None
    high: float | None
    cells: int
    lengths: int
    folds: tuple[float, ...]

    def of_loss(self) -> Gain:
        """Of negated losses, the difference of the losses."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        folds = tuple(-each for each in self.folds)
        return replace(self, mean=-self.mean, low=low, high=high, folds=folds)


def iso_speedup(
    baseline: Curve, method: Curve, *, whole: float, resamples: int = _RESAMPLES, seed: int = 0
) -> Speedup | None:
    """The method's saving; None if no fold has the whole baseline and a run of the method.

    ``whole`` is the cost of the baseline's run whose score is to be reached. Lengths that have not
    run in as many folds as another of the method are left out, and the baseline's that lack these.
    """
    folds = _shared_folds(baseline, method, whole)
    if not folds:
        return None
    ours = method.in_folds(folds).weights_as_seeds()
    # A longer baseline does not move the level, were it worse.
    theirs = baseline.up_to(whole).in_folds(folds).weights_as_seeds()
    # The first sample is the estimate itself.
    our_means, their_means = samples(ours, theirs, resamples, seed=seed)
    levels = their_means[:, theirs.costs.index(whole)]
    theirs_there = costs_of(levels, theirs.costs, their_means)
    factors = theirs_there / costs_of(levels, ours.costs, our_means)
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
        bound=float(theirs_there[0]) / ours.costs[-1],
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
    resamples: int = _RESAMPLES,
    seed: int = 0,
) -> Gain | None:
    """Score of the method's length ``place`` less the baseline's at its cost.

    A length that costs up to a tenth less than the shortest baseline is compared with that. None
    for other lengths outside the baseline's costs, and if no fold has both.
    """
    point = Curve((method.costs[place],), (method.scores[place],))
    shared, cost = _shared_folds(baseline, point, whole), point.costs[0]
    # As many folds as possible in which the baseline has lengths on both sides.
    sets = [shared, *(shared & _folds(scores) for scores in baseline.scores)]
    for folds in sorted(filter(None, sets), key=len, reverse=True):
        theirs = baseline.in_folds(folds)
        if 0.9 * theirs.costs[0] <= cost <= theirs.costs[-1]:
            break
    else:
        return None
    point, theirs = point.in_folds(folds).weights_as_seeds(), theirs.weights_as_seeds()

    def gains(ours: Floats, monotone_means: Floats) -> Floats:
        return ours - _levels_at(cost, theirs.costs, monotone_means)

    def in_fold(fold: Fold) -> float:
        means = np.array([[np.mean(scores) for scores in theirs.of_fold(fold)]])
        return float(gains(np.mean(point.of_fold(fold), axis=1), monotone(means))[0])

    our_means, their_means = samples(point, theirs, resamples, seed=seed)
    drawn = gains(our_means[:, 0], their_means)
    folds, number = _folds(point.scores[0]), len(point.scores[0])
    low, high = (float(end) for end in np.quantile(drawn[1:], (0.025, 0.975)))
    return Gain(
        mean=float(drawn[0]),
        low=None if number == 1 else low,
        high=None if number == 1 else high,
        cells=number,
        lengths=len(theirs.costs),
        folds=tuple(in_fold(fold) for fold in sorted(folds, key=str)),
    )


def gain_at_equal_length(
    baseline: Mapping[Cell, float], method: Mapping[Cell, float]
) -> Gain | None:
    """Score of a method's runs less that of a baseline's, as ``gain_at_equal_cost`` has it."""
    theirs, ours = Curve((1.0,), (baseline,)), Curve((1.0,), (method,))
    return gain_at_equal_cost(theirs, ours, 0, whole=1.0)


def _shared_folds(baseline: Curve, method: Curve, whole: float) -> set[Fold]:
    """The folds of the whole baseline that most lengths of the method can be compared in.

    As many as any of its lengths has there; of several such sets that of the costliest.
    """
    if whole not in baseline.costs:
        return set()
    there = _folds(baseline.scores[baseline.costs.index(whole)])
    sets = [there & _folds(scores) for scores in method.scores]
    return max(reversed(sets), key=len, default=set())


def samples(ours: Curve, theirs: Curve, times: int, *, seed: int) -> tuple[Floats, Floats]:
    """(1 + times, lengths) monotone means of both curves: as they are, then of resamples."""
    split = len(ours.costs)
    folds = sorted(_folds(ours.scores[0]), key=str)
    both = ([*ours.of_fold(fold), *theirs.of_fold(fold)] for fold in folds)
    table = _means(tuple(tuple(map(tuple, lengths)) for lengths in both), times, seed)
    return monotone(table[:, :split]), monotone(table[:, split:])


@lru_cache(maxsize=1)  # the next curves are often the same scores by another cost
def _means(cells: Sequence[Sequence[Sequence[float]]], times: int, seed: int) -> Floats:
    """(1 + times, lengths) means of the scores of each fold's lengths, and then of resamples."""
    rng = np.random.default_rng(seed)
    means = np.array([[np.mean(scores) for scores in lengths] for lengths in cells])
    numbers = np.array([[len(scores) for scores in lengths] for lengths in cells])  # like means
    mean, scale = means.mean(0), math.sqrt(len(cells) / max(1, len(cells) - 1))
    drawn = rng.integers(0, len(cells), (times, len(cells)))
    size = (*drawn.shape, numbers.max())
    noise = np.stack([rng.choice(each, size) for each in _seed_noise(cells)], axis=2)
    is_there = np.arange(numbers.max()) < numbers[drawn][..., None]
    of_seeds = np.where(is_there, noise, 0.0).sum(-1) / numbers[drawn]
    of_folds = mean + scale * (means[drawn] - mean)
    return np.vstack([mean, (of_folds + of_seeds).mean(1)])


def _seed_noise(cells: Sequence[Sequence[Sequence[float]]]) -> list[Floats]:
    """What seeds differ by, of each length: its runs' differences to the mean of their fold.

    Those of all lengths where it has fewer than ``_FEW``; 0 alone if all have one seed. Scaled up
    for the mean being that of the same few runs.
    """
    own = [
        [
            math.sqrt(len(scores) / (len(scores) - 1)) * (score - np.mean(scores))
            for scores in folds
            if len(scores) > 1
            for score in scores
        ]
        for folds in zip(*cells, strict=True)
    ]
    pooled = [each for length in own for each in length] or [0.0]
    return [np.array(length if len(length) >= _FEW else pooled) for length in own]


def monotone(rows: Floats) -> Floats:
    """Of each row the nearest sequence that never falls (least squares).

    Pooled neighbours have their mean: the largest, over where a pool may begin, of the least, over
    where it may end, of the means between (Robertson, Wright and Dykstra, 1988, section 1.4).
    """
    length = rows.shape[1]
    sums = np.hstack([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)])

    def means(first: int, place: int) -> list[Floats]:
        ends = range(place + 1, length + 1)
        return [(sums[:, end] - sums[:, first]) / (end - first) for end in ends]

    return np.stack(
        [
            np.max([np.min(means(first, place), axis=0) for first in range(place + 1)], axis=0)
            for place in range(length)
        ],
        axis=1,
    )


def _levels_at(cost: float, costs: Sequence[float], means: Floats) -> Floats:
    """Of each row the level at a cost, between two costs over their logarithm."""
    place = bisect.bisect_right(costs, cost)
    if place in (0, len(costs)):
        return means[:, max(0, place - 1)]
    low, high = math.log(costs[place - 1]), math.log(costs[place])
    slopes = (means[:, place] - means[:, place - 1]) / (high - low)
    return slopes * (math.log(cost) - low) + means[:, place - 1]


def costs_of(levels: Floats, costs: Sequence[float], means: Floats) -> Floats:
    """Of each row the least cost at which a monotone curve reaches its level; infinite if none."""
    places = (means < levels[:, None] - 1e-12).sum(1)
    inner = np.clip(places, 1, len(costs) - 1) if len(costs) > 1 else np.zeros_like(places)
    rows, logs = np.arange(len(means)), np.log(costs)
    lower, upper = means[rows, inner - 1], means[rows, inner]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        share = (levels - lower) / (upper - lower)
        between = np.exp(logs[inner - 1] + share * (logs[inner] - logs[inner - 1]))
    reached = np.where(places == 0, costs[0], between)
    return np.where(places == len(costs), math.inf, reached)
