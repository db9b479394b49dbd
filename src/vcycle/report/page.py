"""One HTML page that holds all it needs: style, plotting library, charts, tables and pictures.

In: parts of a page as HTML. Out: the page. A policy in its head has the browser run the two scripts
of this module and nothing else, and fetch nothing. Every function here escapes the text that it is
given; what takes HTML says so.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from plotly.offline import get_plotlyjs

from vcycle.report.charts import Chart


@dataclass(frozen=True)
class Table:
    """A table: its caption, the heads of its columns, and rows of text.

    The first column names its rows. ``text`` columns, by number, are aligned left and wrap.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    text: Sequence[int] = ()

    def html(self) -> str:
        heads = "".join(
            f'<th scope="col"{" class=text" if k in (0, *self.text) else ""}>{escape(name)}</th>'
            for k, name in enumerate(self.head)
        )
        lines = "\n".join(f"<tr>{self._cells(row)}</tr>" for row in self.rows)
        caption = escape(self.caption)
        return (
            f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0"><table>'
            f"<caption>{caption}</caption><thead><tr>{heads}</tr></thead>"
            f"<tbody>\n{lines}\n</tbody></table></div>"
        )

    def _cells(self, row: Sequence[object]) -> str:
        first, *others = (escape(str(cell)) for cell in row)
        return f'<th scope="row">{first}</th>' + "".join(
            f"<td{' class=text' if k in self.text else ''}>{cell}</td>"
            for k, cell in enumerate(others, 1)
        )


def chart_html(
    chart: Chart, *, name: str, caption: str, tabled: str = "its values", tall: bool = False
) -> str:
    """A chart, drawn by the page's script; ``name`` is its own on the page.

    ``tabled`` is what the table that follows has of it, in words.
    """
    label = escape(f"{caption} The table that follows has {tabled}.")
    scroll, size = '<div class="scroll">', ""
    if tall:  # on a narrow page it is wider than that
        scroll = f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">'
        size = " tall"
    return (
        f"<figure><figcaption>{escape(caption)}</figcaption>{scroll}"
        f'<div class="plot{size}" id="plot-{name}" data-chart="{name}" role="img" '
        f'aria-label="{label}"></div></div>{json_html(chart, name=name)}</figure>'
    )


def json_html(values: Any, *, name: str) -> str:
    """Values as JSON that no browser runs."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    for character in "<>&":  # nothing in it can end the element or begin another
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>'


def details_html(title: str, content: str) -> str:
    """HTML ``content`` that a reader opens."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def paragraph_html(text: str, *, soft: bool = False) -> str:
    """A paragraph of text."""
    return f"<p{' class=soft' if soft else ''}>{escape(text)}</p>"


def heading_html(level: int, text: str, *, name: str | None = None) -> str:
    """A heading of text, with an anchor if it has a ``name``."""
    anchor = "" if name is None else f' id="{name}"'
    return f"<h{level}{anchor}>{escape(text)}</h{level}>"


def page_html(title: str, sections: Iterable[str], *, links: Sequence[tuple[str, str]]) -> str:
    """The page of HTML ``sections``; ``links`` are names of anchors and their texts."""
    library = _script(get_plotlyjs())
    own = _script((files("vcycle.report") / "page.js").read_text(encoding="utf-8"))
    style = (files("vcycle.report") / "page.css").read_text(encoding="utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(library)}' '{_hash(own)}'",
            "style-src 'unsafe-inline'",  # the plotting library sets styles
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    items = "".join(f'<li><a href="#{name}">{escape(text)}</a></li>' for name, text in links)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<main id="main">
<h1>{escape(title)}</h1>
<nav aria-label="Sections"><ul>{items}</ul></nav>
<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>
{chr(10).join(sections)}
</main>
<script>{library}</script>
<script>{own}</script>
</body>
</html>
"""


def _script(text: str) -> str:
    """A script as it may stand in a page, whose parser changes line ends before it hashes it."""
    return text.replace("\r\n", "\n").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
