"""A bar for a terminal, lines for a file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from vcycle.report import progress_bar


def test_a_file_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    with progress_bar.progress_bar("probing videos", Console(file=file)) as progress:
        progress(1, 9)
        monkeypatch.setattr(progress_bar, "_LINE_SECONDS", -1.0)
        progress(2, 9)
    assert file.getvalue().splitlines() == ["probing videos: 2 of 9"]
