"""A ring of memory: pieces are taken at its end and given back, oldest first, at its start.

Numbers of bytes go in, offsets come out; the memory itself is elsewhere.
"""

from __future__ import annotations

from collections import deque


class Ring:
    """Which bytes of ``num_bytes`` are in use; a piece never wraps around the end."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._pieces: deque[tuple[int, int]] = deque()  # (offset, end) of each, oldest first

    def take(self, num_bytes: int) -> int | None:
        """The offset of a new piece behind the last one, or None if there is no room for it.

        An empty ring gives its start without a check: see to it that every piece fits.
        """
        offset = self._room(num_bytes)
        if offset is not None:
            self._pieces.append((offset, offset + num_bytes))
        return offset

    def give_back(self) -> None:
        """Free the oldest piece."""
        self._pieces.popleft()

    def _room(self, num_bytes: int) -> int | None:
        if not self._pieces:
            return 0
        start, end = self._pieces[0][0], self._pieces[-1][1]
        if self._pieces[-1][0] >= start:  # what is in use lies in one stretch
            if end + num_bytes <= self.num_bytes:
                return end
            return 0 if num_bytes < start else None
        return end if end + num_bytes < start else None
