"""A page in headless Chromium: what it becomes, what it says, what it asks for."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from tests.processes import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--enable-logging=stderr", "--virtual-time-budget=1000"),
)


class Page(HTMLParser):
    """The elements of a page: tags with their attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        """The attributes of every element of a class."""
        return [
            attributes
            for _, attributes in self.elements
            if name in (attributes.get("class") or "").split()
        ]


@dataclass(frozen=True)
class Visit:
    """The page after its scripts ran, lines of its console, and addresses that it asked for."""

    dom: str
    console: list[str]
    requests: list[str]


def visit(file: Path, scratch: Path) -> Visit:
    """Open a file."""
    log = scratch / "net.json"
    done = _run(file, scratch, f"--log-net-log={log}", "--dump-dom")
    return Visit(
        dom=done.stdout,
        console=[line for line in done.stderr.splitlines() if "CONSOLE" in line],
        requests=_requests(log.read_text()),
    )


def screenshot(file: Path, scratch: Path, *, dark: bool) -> Path:
    """A picture of the top of a page."""
    picture = scratch / f"page-{dark}.png"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    _run(file, scratch, scheme, "--window-size=800,600", f"--screenshot={picture}")
    return picture


def _run(file: Path, scratch: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    return subprocess.run(
        [CHROMIUM, *_FLAGS, f"--user-data-dir={scratch / 'profile'}", *flags, file.as_uri()],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )


def _requests(log: str) -> list[str]:
    """Of the page: those of the browser itself are of no origin. The log may lack its end."""
    try:
        events = json.loads(log)["events"]
    except json.JSONDecodeError:
        events = json.loads(log.rstrip().rstrip(",") + "]}")["events"]
    found = [event.get("params", {}) for event in events]
    return [
        each["url"]
        for each in found
        if "url" in each and each.get("initiator", "not an origin") != "not an origin"
    ]
