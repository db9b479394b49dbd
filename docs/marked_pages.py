"""The generated parts of pages: what stands between ``<!-- MARK -->`` and ``<!-- /MARK -->``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def update_pages(pages: Mapping[Path, Mapping[str, str]], *, check: bool) -> int:
    """Write each page's content by mark, or only ``check`` it; returns how many were out of date.

    Raises ValueError if a page lacks a mark.
    """
    outdated = 0
    for page, contents in pages.items():
        before = after = page.read_text()
        for mark, content in contents.items():
            after = _filled(after, mark, content)
        outdated += after != before
        if not check:
            page.write_text(after)
    return outdated


def _filled(text: str, mark: str, content: str) -> str:
    pattern = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no marks <!-- {mark} --> in the text")
    return pattern.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text)
