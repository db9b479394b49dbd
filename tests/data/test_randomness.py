"""Indexed randomness: golden seeds, and draws that do not depend on their company."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from vcycle.data.randomness import indexed_generator, indexed_seeds


def test_golden_seeds():
    """A change of these changes every run that people have on disk."""
    positions = np.array([0, 1, 2, 10**9])
    assert indexed_seeds(0, "clip", positions).tolist() == [
        10478577460714314472,
        12200328743117129641,
        6805623031880319158,
        14404794917729746902,
    ]


def test_purposes_do_not_share_draws():
    positions = np.arange(1000)
    words = [indexed_seeds(s, p, positions) for s in (0, 1) for p in ("clip", "shuffle")]
    assert len(np.unique(np.concatenate(words))) == 4000
    bits = np.unpackbits(words[0].view(np.uint8))
    assert 0.49 < bits.mean() < 0.51


@given(st.integers(0, 2**63), st.lists(st.integers(0, 2**62), min_size=1, max_size=50, unique=True))
def test_a_position_has_a_seed_of_its_own_whatever_its_company(seed, positions):
    together = indexed_seeds(seed, "clip", np.array(positions))
    alone = [indexed_seeds(seed, "clip", np.array([position]))[0] for position in positions]
    assert together.tolist() == alone
    assert len(set(alone)) == len(positions)
    expected = np.random.default_rng(int(alone[0])).random()
    assert indexed_generator(seed, "clip", positions[0]).random() == expected
