"""The iso-accuracy estimator, on curves whose horizontal distance is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from study_iso import Curve, costs_of, gain_at_equal_cost, iso_speedup, monotone, samples

CELLS = [(seed, fold) for seed in range(5) for fold in range(3)]
COSTS = (300.0, 450.0, 750.0, 1000.0, 1500.0)


def curve(costs, score_of, noise=0.0, seed=0) -> Curve:
    """A score for each cost and cell: a function of the cost, and what the cell adds."""
    rng = np.random.default_rng(seed)
    scores = [
        {cell: score_of(cost) + noise * rng.standard_normal() for cell in CELLS} for cost in costs
    ]
    return Curve(tuple(costs), tuple(scores))


def learnt(cost: float) -> float:
    """Straight over the logarithm of the cost, as the estimator takes curves to be."""
    return 0.2 + 0.3 * math.log2(cost / 300)


@pytest.mark.parametrize("saving", [0.5, 1.0, 2.0, 3.7])
def test_the_distance_between_shifted_curves_is_the_shift(saving):
    method = curve([cost / saving for cost in COSTS], lambda cost: learnt(cost * saving))
    found = iso_speedup(curve(COSTS, learnt), method, whole=1500.0)
    assert found.factor == pytest.approx(saving)
    assert found.low == pytest.approx(saving)
    assert found.high == pytest.approx(saving)
    assert (found.reached, found.at_least, found.cells) == (1.0, False, 15)


def test_a_level_between_two_lengths_is_interpolated():
    method = curve([200.0, 800.0], lambda cost: {200.0: 0.4, 800.0: learnt(1500.0) + 0.5}[cost])
    share = (learnt(1500.0) - 0.4) / (learnt(1500.0) + 0.5 - 0.4)
    found = iso_speedup(curve(COSTS, learnt), method, whole=1500.0)
    assert found.factor == pytest.approx(1500 / (200 * 4**share))


def test_a_level_that_is_never_reached_has_a_bound_and_no_number():
    method = curve([100.0, 500.0], lambda cost: learnt(1500.0) - 0.1)
    found = iso_speedup(curve(COSTS, learnt), method, whole=1500.0)
    assert (found.factor, found.low, found.high) == (None, None, None)
    assert found.bound == pytest.approx(3.0)
    assert found.reached == 0


def test_a_shortest_run_above_the_level_gives_a_lower_bound():
    found = iso_speedup(curve(COSTS, learnt), curve([300.0], lambda _: 5.0), whole=1500.0)
    assert found.factor == pytest.approx(5.0)
    assert found.at_least
    assert (found.low, found.high) == (pytest.approx(5.0), None)


def test_the_upper_end_is_open_where_some_resamples_lie_above_the_shortest_run():
    method = curve([400.0, 1500.0], lambda cost: learnt(cost * 3.5), noise=0.1, seed=1)
    found = iso_speedup(curve(COSTS, learnt, noise=0.1), method, whole=1500.0)
    assert not found.at_least
    assert found.low < found.factor
    assert found.high is None


@pytest.mark.parametrize("gain", [0.1, 0.0, -0.1])
def test_a_longer_baseline_does_not_move_the_level(gain):
    longer = curve((*COSTS, 3000.0), lambda cost: learnt(min(cost, 1500.0)) + gain * (cost > 1500))
    method = curve([cost / 2 for cost in COSTS], lambda cost: learnt(cost * 2))
    assert iso_speedup(longer, method, whole=1500.0).factor == pytest.approx(2.0)


def test_a_baseline_that_gains_nothing_from_its_last_third_is_not_flattered():
    """Its level is reached at 1,000 steps, so a method that needs 500 saves 2 times, not 3."""
    baseline = curve(COSTS, lambda cost: learnt(min(cost, 1000.0)))
    method = curve([cost / 2 for cost in COSTS], lambda cost: learnt(min(2 * cost, 1000.0)))
    assert iso_speedup(baseline, method, whole=1500.0).factor == pytest.approx(2.0)


def test_lengths_may_have_run_in_other_seeds_however_much_folds_differ():
    of_fold = np.random.default_rng(0).normal(0, 3, 3)

    def shifted(costs, saving, kept):
        return Curve(
            tuple(costs),
            tuple(
                {cell: learnt(cost * saving) + of_fold[cell[1]] for cell in cells}
                for cost, cells in zip(costs, kept, strict=True)
            ),
        )

    first = [cell for cell in CELLS if cell[0] == 0]
    baseline = shifted(COSTS, 1.0, [first, CELLS, CELLS[:9], CELLS[3:6], CELLS[:7]])
    method = shifted([cost / 2 for cost in COSTS], 2.0, [CELLS, CELLS, first, CELLS[4:], first])
    found = iso_speedup(baseline, method, whole=1500.0)
    assert found.factor == pytest.approx(2.0)
    assert (found.low, found.high) == (pytest.approx(2.0), pytest.approx(2.0))
    assert (found.cells, found.fewest) == (15, 3)
    for place, cost in enumerate(method.costs[2:], 2):
        found = gain_at_equal_cost(baseline, method, place, whole=1500.0)
        gain = learnt(cost * 2) - learnt(cost)
        assert (found.mean, found.low, found.high) == pytest.approx((gain, gain, gain))
        assert found.cells == len(method.scores[place])


def test_lengths_that_lack_a_fold_are_left_out():
    method = curve([cost / 2 for cost in COSTS], lambda cost: learnt(cost * 2) + (cost < 200))
    for seed in range(5):
        method.scores[0].pop((seed, 1))  # which would be above the level
        method.scores[4].pop((seed, 2))  # without which it is not reached
    found = iso_speedup(curve(COSTS, learnt), method, whole=1500.0)
    assert found.factor is None
    assert found.bound == pytest.approx(3.0)


def test_of_two_sets_of_folds_that_of_the_costlier_length_counts():
    method = curve([100.0, 200.0], lambda cost: learnt(1500.0) + (cost - 150) / 100)
    for seed in range(5):
        method.scores[0].pop((seed, 2))
        method.scores[1].pop((seed, 1))
    found = iso_speedup(curve(COSTS, learnt), method, whole=1500.0)
    assert (found.factor, found.at_least, found.cells) == (pytest.approx(7.5), True, 10)


def test_runs_from_other_weights_are_compared_with_those_from_the_same_alone():
    """Their folds are those of people: a second seed of the weights is no further fold."""
    of_weights = [0.0, 0.5]

    def started(costs, saving, weights):
        return Curve(
            tuple(costs),
            tuple(
                {
                    (0, (fold, seed)): learnt(cost * saving)
                    + of_weights[seed]
                    + 0.03 * fold * saving
                    for fold in range(3)
                    for seed in seeds
                }
                for cost, seeds in zip(costs, weights, strict=True)
            ),
        )

    baseline = started(COSTS, 1.0, [[0], [0], [0], [0], [0, 1]])
    method = started([cost / 2 for cost in COSTS], 2.0, [[0]] * 5)
    found = iso_speedup(baseline, method, whole=1500.0)
    people = [
        Curve(
            each.costs,
            tuple(
                {(0, fold[0]): score for (_, fold), score in scores.items() if fold[1] == 0}
                for scores in each.scores
            ),
        )
        for each in (baseline, method)
    ]
    assert found == iso_speedup(*people, whole=1500.0)
    both = [
        started(costs, saving, [[0, 1]] * 5)
        for costs, saving in ((COSTS, 1.0), (method.costs, 2.0))
    ]
    wider = iso_speedup(*both, whole=1500.0)
    assert wider.factor == pytest.approx(found.factor)
    assert wider.cells == 6


def test_one_run_gives_no_interval():
    one = Curve(COSTS, tuple({(0, 0): learnt(cost)} for cost in COSTS))
    found = iso_speedup(one, one, whole=1500.0)
    assert found.factor == pytest.approx(1.0)
    assert (found.low, found.high, found.cells) == (None, None, 1)
    single = gain_at_equal_cost(one, one, 2, whole=1500.0)
    assert single.mean == pytest.approx(0.0)
    assert (single.low, single.high, single.cells, len(single.folds)) == (None, None, 1, 1)


def test_nothing_can_be_said_without_the_whole_baseline():
    baseline = curve(COSTS[:-1], learnt)
    assert iso_speedup(baseline, curve(COSTS, learnt), whole=1500.0) is None


def covers_the_truth(study: int, *, seeds: int, fold_spread: float, further: int) -> bool:
    """Whether the interval of one simulated study of the published lengths holds the truth, 4x.

    A cell's noise is four points. Folds are harder or easier by as much, and the logarithm of what
    is saved differs between them by ``fold_spread``; the method's lengths beyond the shortest have
    run ``further`` seeds.
    """
    rng = np.random.default_rng(study)
    of_fold, savings = rng.normal(0, 0.04, 3), 4.0 * np.exp(rng.normal(0, fold_spread, 3))

    def run(costs, saved, numbers):
        scores = (
            {
                (seed, fold): learnt(cost * saved[fold]) + of_fold[fold] + rng.normal(0, 0.04)
                for seed in range(number)
                for fold in range(3)
            }
            for cost, number in zip(costs, numbers, strict=True)
        )
        return Curve(tuple(costs), tuple(scores))

    found = iso_speedup(
        run([441.0, 750.0, 1500.0], np.ones(3), [seeds] * 3),
        run([276.0, 414.0, 554.0, 833.0], savings, [seeds, further, further, further]),
        whole=1500.0,
        resamples=200,
    )
    return (found.low or 0.0) <= 4.0 <= (found.high or math.inf)


@pytest.mark.parametrize(
    ("seeds", "further", "fold_spread", "least", "most"),
    [
        (5, 5, 0.0, 0.94, 1.0),
        (5, 5, 0.12, 0.87, 0.97),
        (5, 5, 0.25, 0.8, 0.9),
        (5, 1, 0.25, 0.8, 0.9),
        (1, 1, 0.0, 0.75, 0.9),
        (1, 1, 0.25, 0.75, 0.9),
    ],
)
def test_how_often_the_interval_holds_the_truth(seeds, further, fold_spread, least, most):
    """As docs/study.md says."""
    held = [
        covers_the_truth(study, seeds=seeds, further=further, fold_spread=fold_spread)
        for study in range(200)
    ]
    assert least <= sum(held) / len(held) <= most


def test_the_same_rows_give_the_same_interval_and_more_noise_a_wider_one():
    def width(noise: float) -> float:
        baseline = curve(COSTS, learnt, noise=noise)
        found = iso_speedup(
            baseline, curve((*COSTS, 4000.0), learnt, noise=noise, seed=1), whole=1500.0
        )
        return found.high - found.low

    assert width(0.02) == width(0.02)
    assert width(0.02) < width(0.08)


def test_a_gain_at_equal_cost_is_the_vertical_distance():
    baseline = curve(COSTS, learnt)
    method = curve([600.0], lambda cost: learnt(cost) + 0.07)
    gain = gain_at_equal_cost(baseline, method, 0, whole=1500.0)
    assert [gain.mean, gain.low, gain.high, *gain.folds] == pytest.approx([0.07] * 6)
    assert (gain.cells, gain.lengths) == (15, len(COSTS))


def test_a_gain_in_each_fold_is_over_the_baseline_there():
    """Folds 1 and 2 are easier for both; the gain is of a fold's number in hundredths."""
    baseline = Curve(COSTS, tuple({c: learnt(cost) + c[1] for c in CELLS} for cost in COSTS))
    method = Curve((600.0,), ({c: learnt(600.0) + 1.01 * c[1] for c in CELLS},))
    gain = gain_at_equal_cost(baseline, method, 0, whole=1500.0)
    assert gain.folds == pytest.approx((0, 0.01, 0.02), abs=1e-12)
    assert gain.mean == pytest.approx(0.01)
    of_loss = gain.of_loss()
    assert (of_loss.mean, of_loss.low, of_loss.high) == (-gain.mean, -gain.high, -gain.low)
    assert of_loss.folds == tuple(-each for each in gain.folds)


def test_there_is_no_gain_beyond_the_costs_of_the_baseline():
    for cost in (200.0, 1600.0):
        method = curve([cost], learnt)
        assert gain_at_equal_cost(curve(COSTS, learnt), method, 0, whole=1500.0) is None
    slightly_shorter = curve([280.0], lambda _: learnt(300.0))
    found = gain_at_equal_cost(curve(COSTS, learnt), slightly_shorter, 0, whole=1500.0)
    assert (found.mean, found.low, found.high) == pytest.approx((0, 0, 0), abs=1e-12)


def test_a_resample_draws_folds_and_then_the_noise_of_seeds():
    """Two folds, 0 and 100 on average: one of two seeds, -1 and 1, one of a single seed."""
    scores = {(0, 0): -1.0, (1, 0): 1.0, (0, 1): 100.0}
    same = {(0, 0): 0.0, (0, 1): 100.0}
    ours, theirs = samples(Curve((1.0,), (scores,)), Curve((1.0,), (same,)), 500, seed=0)
    assert ours[0] == theirs[0] == pytest.approx(50.0)
    # Two of either fold, or one of each, scaled; what is drawn of the noise is far smaller.
    of_folds = 50 + 50 * math.sqrt(2) * np.round((theirs[1:, 0] - 50) / 50)
    assert set(np.round(of_folds)) == {-21.0, 50.0, 121.0}
    assert np.all(np.abs(ours[1:, 0] - of_folds) <= math.sqrt(2) + 1e-9)
    noise = theirs[1:, 0] - of_folds
    assert noise.std() == pytest.approx(1.0, rel=0.1)  # sqrt(2), of the mean of two single seeds
    assert noise.mean() == pytest.approx(0.0, abs=0.15)


def pooled(values: list[float]) -> np.ndarray:
    """The pool adjacent violators algorithm."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (left, n), (right, m) = pools[-2:]
            pools[-2:] = [((left * n + right * m) / (n + m), n + m)]
    return np.repeat([mean for mean, _ in pools], [size for _, size in pools])


@given(st.integers(1, 8).flatmap(lambda n: arrays(float, (3, n), elements=st.floats(-10, 10))))
def test_monotone_sequences_pool_neighbours_that_fall(rows):
    means = monotone(rows)
    assert means == pytest.approx(np.array([pooled(row) for row in rows]), abs=1e-9)
    assert np.all(np.diff(means) >= -1e-9)


def test_the_cost_of_a_level_on_a_plateau_is_that_of_its_start():
    levels = np.array([0.5, 0.05, 0.95, 0.7])
    means = np.tile([0.1, 0.5, 0.5, 0.9], (4, 1))
    found = costs_of(levels, [1.0, 2.0, 4.0, 8.0], means)
    assert found == pytest.approx([2.0, 1.0, math.inf, math.sqrt(32)])
    one = costs_of(levels, [3.0], np.full((4, 1), 0.6))
    assert list(one) == [3.0, 3.0, math.inf, math.inf]
