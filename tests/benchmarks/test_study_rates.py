"""The search for a rate ends where a brute-force one would, and tries no more than it has to."""

from __future__ import annotations

import itertools

import pytest

from study_rates import best_rate, wanted_rates

RATES = [0.001 * 2**power for power in range(7)]


def search(rates: list[float], losses: dict[float, float]) -> list[float]:
    """The rates in the order in which they were tried."""
    tried: list[float] = []
    while wanted := wanted_rates(rates, {rate: losses[rate] for rate in tried}):
        tried.append(wanted[0])
    return tried


def test_the_middle_three_are_tried_first_and_all_of_fewer():
    assert wanted_rates(RATES, {}) == RATES[2:5]
    assert wanted_rates(RATES, {RATES[3]: 1.0}) == [RATES[2], RATES[4]]
    assert wanted_rates(RATES[:2], {}) == RATES[:2]
    assert wanted_rates(RATES[:1], {RATES[0]: 1.0}) == []


@pytest.mark.parametrize("best", range(7))
def test_of_losses_with_one_valley_the_least_is_found(best):
    losses = {rate: abs(number - best) + 1.0 for number, rate in enumerate(RATES)}
    tried = search(RATES, losses)
    assert best_rate({rate: losses[rate] for rate in tried}) == RATES[best]
    assert len(tried) == (5, 5, 4, 3, 4, 5, 5)[best]


def test_what_is_chosen_lies_between_two_worse_ones_or_at_an_end_of_all():
    for order in itertools.permutations(range(7)):
        losses = dict(zip(RATES, map(float, order), strict=True))
        tried = search(RATES, losses)
        chosen = RATES.index(best_rate({rate: losses[rate] for rate in tried}))
        assert set(RATES[max(0, chosen - 1) : chosen + 2]) <= set(tried)
        assert sorted(tried) == RATES[RATES.index(min(tried)) :][: len(tried)]


def test_of_equal_losses_the_smaller_rate_wins():
    assert best_rate({0.2: 1.0, 0.1: 1.0, 0.4: 2.0}) == 0.1
