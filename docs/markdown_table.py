"""Tables of the generated pages, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable

_RULES = {"l": "---", "r": "---:"}


def table(columns: str, align: str, rows: Iterable[str]) -> str:
    """Of ``columns`` and ``rows``, each with " | " between its cells.

    ``align`` is a letter a column: l for text, r for numbers.
    """
    rules = " | ".join(_RULES[each] for each in align)
    return "\n".join(f"| {line} |" for line in (columns, rules, *rows))
