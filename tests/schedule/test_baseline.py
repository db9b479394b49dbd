import math

import pytest

from vcycle.schedule.baseline import LearningRate


def test_step_rate() -> None:
    rate = LearningRate(0.8)
    assert [rate.at(stage=n, progress=0.5) for n in range(3)] == pytest.approx([0.8, 0.08, 0.008])
    assert LearningRate(0.8, gamma=0.5).at(stage=2, progress=0) == pytest.approx(0.2)


def test_cosine_rate() -> None:
    rate = LearningRate(0.8, decay="cosine", final=0.1)
    rates = [rate.at(stage=7, progress=share) for share in (0, 0.5, 1)]
    assert rates == pytest.approx([0.8, 0.44, 0.08])
    quarter = 0.4 * (1 + math.cos(math.pi / 4))
    assert LearningRate(0.8, decay="cosine").at(stage=0, progress=0.25) == pytest.approx(quarter)


def test_one_cycle_rate() -> None:
    rate = LearningRate(0.5, decay="one-cycle", rise=0.2, final=0.01)
    rates = [rate.at(stage=0, progress=share) for share in (0, 0.1, 0.2, 0.6, 1)]
    assert rates == pytest.approx([0.02, 0.26, 0.5, 0.2525, 0.005])
