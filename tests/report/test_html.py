"""The report of a run: one file, whole, that asks for nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from vcycle.cli.main import main
from vcycle.report.runs import read_run


class Page(HTMLParser):
    """Tags with their attributes, and the rows of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture
def report(trained_run: Path, tmp_path: Path) -> Path:
    other = tmp_path / "a <b> & c"
    shutil.copytree(trained_run, other)
    out = tmp_path / "report.html"
    assert main(["report", str(trained_run), str(other), "--out", str(out)]) == 0
    return out


def test_it_holds_every_validation_as_table_and_json(report: Path, trained_run: Path) -> None:
    text = report.read_text()
    points = read_run(trained_run).points
    data = re.search(r'<script type="application/json" id="runs">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert [each["accuracy"] for each in json.loads(data[1])[0]["points"]] == [
        point.accuracy for point in points
    ]
    for point in points:
        assert f"<td>{point.accuracy:.2%}</td><td>{point.seconds:,.1f}</td>" in text
    assert "a &lt;b&gt; &amp; c" in text
    assert "<b>" not in text


def test_nothing_leaves_the_page_and_every_plot_is_named(report: Path) -> None:
    page = Page(report.read_text())
    links = [
        value
        for _, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href") and value and not value.startswith("#")
    ]
    assert links == []
    plots = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(plots) == 4  # accuracy, loss, and the plan of each run
    assert all(plot["role"] == "img" and plot["aria-label"] for plot in plots)


def test_a_folder_that_is_no_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "x.html")]) == 2
    assert "no dataset.json in it" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
def test_it_renders_in_chromium_without_a_console_error(report: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    done = subprocess.run(
        [
            *command,
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={picture}",
            str(report),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert picture.stat().st_size > 10_000
    assert "CONSOLE" not in done.stderr
