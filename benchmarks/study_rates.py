"""Which rate trains a method's final runs: the same search for every method.

In: the rates that a task allows, ascending, and the losses of those that were tried. Out: those to
try next. The middle three are tried first; while the least loss is at one end of what was tried,
so is the next rate beyond it. So a chosen rate lies between two worse ones, or at the end of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def wanted_rates(rates: Sequence[float], losses: Mapping[float, float]) -> list[float]:
    """The rates to try before one can be chosen; none are left once it can."""
    low = max(0, (len(rates) - 3) // 2)
    high = min(len(rates), low + 3)
    while True:
        tried = rates[low:high]
        if missing := [rate for rate in tried if rate not in losses]:
            return missing
        best = best_rate(losses)
        if best <= tried[0] and low > 0:
            low -= 1
        elif best >= tried[-1] and high < len(rates):
            high += 1
        else:
            return []


def best_rate(losses: Mapping[float, float]) -> float:
    """The rate of the least loss; of equal ones the smaller."""
    return min(losses, key=lambda rate: (losses[rate], rate))
