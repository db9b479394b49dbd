"""Words of one-line messages: a count with its noun, a text in quotes, seconds, an error."""

from __future__ import annotations

import traceback
from pathlib import Path


def quoted(text: str) -> str:
    """The start of a text in quotes, for a one-line message."""
    return repr(text[:60])


def counted(count: int, noun: str) -> str:
    """A count with its noun, such as ``1 video``, ``1,200 videos`` or ``2 classes``."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def shortened(said: object, most: int = 200) -> str:
    """What an error or another object says, on one line of at most so many characters."""
    return " ".join(str(said).split())[:most]


def one_line(error: BaseException) -> str:
    """An exception's message for people: its kind with it, unless its text was made for them."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    text = getattr(error, "strerror", None)  # of an OSError, or of FFmpeg
    if not text:
        text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return shortened(text)


def raised_text(error: BaseException) -> str:
    """What somebody's own code raised: its kind and text, or the line itself if it has no text."""
    said = shortened(error)
    if not said and error.__traceback__ is not None:  # as of a bare assert
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{place.line} ({Path(place.filename).name}, line {place.lineno})"
    return f"{type(error).__name__}: {said}"


def duration(seconds: float) -> str:
    """Seconds as a person writes them: 42 s, 3:05 min, 7:30 h, 2.5 days."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    if whole < 2 * 86_400:
        return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
    return f"{whole / 86_400:.1f} days"
