"""Write the generated parts of the documentation: no number in it is typed by hand.

    python docs/update.py           fill the tables from docs/results/*.json
    python docs/update.py --check   exit 1 if a table is out of date

`docs/results/demo.json` is the `summary.json` of `make demo`, and `docs/pictures/demo.png` its
`curves.png`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TITLES = {
    "baseline": "baseline: constant mini-batch shape",
    "baseline_short": "baseline cut to as many steps",
    "multigrid": "**multigrid**",
}


def demo_table(summary: dict[str, Any]) -> str:
    """The rows of the demo as a Markdown table, with what it was measured on."""
    lines = [
        "| `make demo` | steps | epochs | clips | seconds | speed-up | top-1 |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {TITLES[row['name']]} | {row['steps']:,} | {row['epochs']:.1f} | {row['clips']:,} "
        f"| {row['seconds']:.0f} | {row['speedup']:.1f}x | {row['top1']:.1%} |"
        for row in summary["rows"]
    ]
    return "\n".join(lines)


def fill(text: str, mark: str, content: str) -> str:
    """``text`` with what stands between the two marks replaced."""
    pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no marks <!-- {mark} --> in the text")
    return pattern.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text)


def main(arguments: list[str]) -> int:
    """Update README.md, or only check it."""
    readme = ROOT / "README.md"
    summary = json.loads((ROOT / "docs" / "results" / "demo.json").read_text())
    text = fill(readme.read_text(), "demo", demo_table(summary))
    if "--check" in arguments:
        return int(text != readme.read_text())
    readme.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
