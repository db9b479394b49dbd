"""A bar for a terminal, lines for a file."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from tests.processes import PATIENCE
from vcycle.train import activity
from vcycle.train.activity import progress_bar


def test_a_file_gets_lines_even_while_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()

    def wait_for(line: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while line not in file.getvalue():
            assert time.monotonic() < deadline, file.getvalue()
            time.sleep(0.02)

    with progress_bar("probing videos", Console(file=file)) as progress:
        progress(1, 9)
        assert not file.getvalue()
        monkeypatch.setattr(activity, "_QUIET_SECONDS", 0.0)
        wait_for("probing videos: 1 of 9\nprobing videos: 1 of 9\n")
        progress(2, 9)
        wait_for("probing videos: 2 of 9\n")


def test_before_anything_is_counted_the_seconds_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_QUIET_SECONDS", 0.0)
    file = io.StringIO()
    with progress_bar("probing videos", Console(file=file)):
        deadline = time.monotonic() + PATIENCE
        while "probing videos (" not in file.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.02)
