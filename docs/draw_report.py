"""Draw docs/figures/report.png: what the report of runs looks like, in headless Chromium.

python docs/draw_report.py RUN [RUN ...]

The README shows that of the demo's runs, after ``make demo``:
cd runs/demo && python ../../docs/draw_report.py baseline small multigrid anneal

Left, the top of the page in light; right, the last run's section in dark. Needs ``chromium``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from vcycle.report.html import write_report

FIGURE = Path(__file__).parent / "figures" / "report.png"
WIDTH, HEIGHT = 1000, 1205
"""Of each half, in pixels of a page at a scale of 1."""
STYLE = (
    f"body {{margin: 0; display: flex}} iframe {{border: 0; width: {WIDTH}px; height: {HEIGHT}px}}"
)
COLOURS = 128


def main(folders: list[str]) -> int:
    """Write the report of run folders, and the picture of it."""
    if not folders:
        print(__doc__)
        return 2
    anchors = {"light": "", "dark": f"#run-{len(folders) - 1}"}
    frames = "".join(
        f'<iframe src="report.html{anchor}" style="color-scheme: {scheme}"></iframe>'
        for scheme, anchor in anchors.items()
    )
    with tempfile.TemporaryDirectory() as scratch:
        write_report(folders, Path(scratch) / "report.html")
        (Path(scratch) / "both.html").write_text(f"<!doctype html><style>{STYLE}</style>{frames}")
        _screenshot(Path(scratch) / "both.html", Path(scratch) / "both.png")
        picture = Image.open(Path(scratch) / "both.png").convert("RGB")
    picture.quantize(COLOURS).save(FIGURE, optimize=True)
    return 0


def _screenshot(page: Path, picture: Path) -> None:
    command = (
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--virtual-time-budget=5000", f"--user-data-dir={page.parent / 'profile'}"),
        *(f"--window-size={2 * WIDTH},{HEIGHT}", f"--screenshot={picture}", page.as_uri()),
    )
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
