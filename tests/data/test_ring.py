"""The ring of memory: pieces never overlap, and what fits is found."""

from __future__ import annotations

from collections import deque

from hypothesis import given, strategies as st

from vcycle.data.ring import Ring


def test_by_hand():
    ring = Ring(10)
    assert ring.take(4) == 0
    assert ring.take(4) == 4
    assert ring.take(3) is None  # two bytes at the end, none at the start
    ring.give_back()
    assert ring.take(4) is None  # full, it would look empty
    assert ring.take(3) == 0
    assert ring.take(1) is None
    ring.give_back()
    assert ring.take(6) == 3
    ring.give_back()
    ring.give_back()
    assert ring.take(10) == 0  # nothing is in use


@given(st.lists(st.integers(1, 30), max_size=60), st.data())
def test_pieces_lie_inside_and_never_overlap(sizes, data):
    ring = Ring(40)
    used = deque()
    for size in sizes:
        offset = ring.take(size)
        while offset is None:
            assert used, "an empty ring has room"
            used.popleft()
            ring.give_back()
            offset = ring.take(size)
        assert 0 <= offset <= offset + size <= 40
        assert all(offset + size <= a or b <= offset for a, b in used)
        used.append((offset, offset + size))
        for _ in range(data.draw(st.integers(0, len(used)))):
            used.popleft()
            ring.give_back()
