"""Whether clips of a dataset may be mirrored: not if its classes tell left from right.

A mirrored ``left_serve`` looks like a ``right_serve``, so mirroring would spoil the labels. Class
names go in, those that name a side come out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vcycle.data.manifest import Manifest

# A side, in the languages in which classes are mostly named, alone or as in 'lefthanded'.
_SIDE = re.compile(
    "(left|right)(hand(ed|er)?|foot(ed)?|arm|leg|eye|side|sided|most|wards?)?s?"
    "|(counter|anti)?clockwise|a?cw|ccw|links|rechts|linke[rns]?|rechte[rns]?|gauche|droite?"
    "|izquierd[ao]|derech[ao]|sinistr[ao]|destr[ao]|esquerd[ao]|direit[ao]"
)
# Of scripts that join it to other words.
_SIDE_WITHIN = re.compile("左|右|왼|오른|[顺順逆][时時][针針]|時計(回|まわ)")
_WORD = re.compile(r"[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?![a-z])")  # of snake_case, camelCase and prose
_OPPOSITES = (("left", "right"), ("clockwise", "counterclockwise"), ("l", "r"), ("lh", "rh"))


def mirroring(classes: Sequence[str], chosen: bool | None) -> tuple[bool, str]:
    """Whether clips may be mirrored, and a line that says so if there is something to say.

    ``chosen`` is what the user said; None leaves it to the names of the classes.
    """
    named = _told_apart(classes)
    if chosen is None:
        note = f"clips are not mirrored: {named}; --flip mirrors them all the same"
        return not named, note if named else ""
    if chosen:
        return True, f"clips are mirrored, as chosen with --flip, though {named}" if named else ""
    return False, "clips are not mirrored, as chosen with --no-flip"


def mirroring_of(manifest: Manifest) -> str:
    """A line on whether clips of a manifest are mirrored, if there is something to say."""
    named = _told_apart(manifest.classes)
    if any(video.flip for video in manifest.videos):
        return f"clips are mirrored, as the manifest says, though {named}" if named else ""
    return f"clips are not mirrored, as the manifest says{f': {named}' if named else ''}"


def _told_apart(classes: Sequence[str]) -> str:
    """What names of classes tell, in words; empty without such names."""
    sided = names_of_sides(classes)
    return f"names such as {sided[0]} tell left from right" if sided else ""


def names_of_sides(classes: Sequence[str]) -> list[str]:
    """The class names that tell left from right.

    A name does if one of its words is a side, such as ``turnLeft``, ``from right to left`` or
    ``lefthand swing``; or if changing the side gives another class, such as ``kickleft`` beside
    ``kickright`` or ``arm_L`` beside ``arm_R``.
    """
    known = {name.lower() for name in classes}
    return [name for name in classes if _has_side(name) or _has_opposite(name.lower(), known)]


def _has_side(name: str) -> bool:
    words = _WORD.findall(name)
    is_word = any(_SIDE.fullmatch(word.lower()) for word in words)
    return is_word or _SIDE_WITHIN.search(name) is not None


def _has_opposite(name: str, known: set[str]) -> bool:
    for pair in _OPPOSITES:
        for side, other in (pair, pair[::-1]):
            # One letter is a side only as a word of its own.
            word = rf"(?<![a-z]){side}(?![a-z])" if len(side) <= 2 else side
            changed = re.sub(word, other, name)
            if changed != name and changed in known:
                return True
    return False
