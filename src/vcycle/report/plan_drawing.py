"""A plan's drawing inside a page: an SVG whose colours are the page's, dark or light.

In: a plan and the steps after which a run was validated. Out: SVG.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

import matplotlib

from vcycle.report.plan_plot import draw_plans
from vcycle.report.plot_file import ACCENT, GRID, TEXT
from vcycle.schedule.plan import Plan

_COLOURS = {TEXT: "var(--ink)", GRID: "var(--line)", ACCENT: "var(--series-1)"}


def plan_svg(plan: Plan, *, validations: Sequence[int], label: str) -> str:
    """The plan as SVG to stand in a page, where ``label`` is what a screen reader says."""
    with tempfile.TemporaryDirectory() as scratch, matplotlib.rc_context():
        matplotlib.rcParams["savefig.transparent"] = True
        draw_plans({"": plan}, Path(scratch) / "plan.svg", validations={"": validations})
        svg = (Path(scratch) / "plan.svg").read_text()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    for colour, variable in _COLOURS.items():
        svg = svg.replace(colour, variable)
    # Each SVG's ids are its own: a page may have several.
    prefix = hashlib.sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)
