"""Divide videos between training and validation.

Names, labels and groups of videos go in, a split for each comes out. A split is stratified: each
class has about the asked share of its videos in validation, and at least one video on both sides if
it has two. A group (one person, one source video) never lies on both sides, since a model that
recognizes the person would score too well.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Labels = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Splitting:
    """How a user wants videos divided that have no split of their own.

    ``group_pattern`` is a regular expression, see ``groups_by_pattern``. Raises ValueError if
    ``val_share`` is not from 0 to 1, or the pattern is no regular expression with a group.
    """

    val_share: float = 0.1
    group_pattern: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.val_share <= 1:
            raise ValueError(f"val_share {self.val_share}: give a share from 0 to 1")
        if self.group_pattern is not None:
            _compiled(self.group_pattern)  # videos that need no pattern would not show its mistake

    def divide(
        self, names: Sequence[str], labels: Sequence[Labels], groups: Sequence[str] | None = None
    ) -> list[tuple[str, str | None]]:
        """The split of each video, and its group: the pattern's, else of ``groups``, else its name.

        Groups are None if one side is to have all.
        """
        if self.group_pattern is not None:
            groups = groups_by_pattern(names, self.group_pattern)
        groups = groups or names
        splits = split_videos(labels, groups, val_share=self.val_share)
        one_sided = self.val_share in (0, 1)
        return list(zip(splits, [None] * len(names) if one_sided else groups, strict=True))

    def with_val(
        self,
        splits: Sequence[str],
        names: Sequence[str],
        labels: Sequence[Labels],
        groups: Sequence[str] | None = None,
        *,
        reason: str,
    ) -> tuple[list[tuple[str, str | None]], tuple[str, ...]]:
        """The splits that the data has, for a ``reason``, with some of train for val if none is.

        Data without splits, all empty, is divided. Each has the group of a video that was drawn;
        and there are notes on what was done.
        """
        if not any(splits):
            return self.divide(names, labels, groups), ()
        if "train" not in splits or "val" in splits or not self.val_share:
            note = f"group_pattern {self.group_pattern!r} is not used: {reason}"
            notes = () if self.group_pattern is None else (note,)
            return [(split, None) for split in splits], notes
        places = [place for place, split in enumerate(splits) if split == "train"]

        def of_train(values: Sequence[T]) -> list[T]:
            return [values[place] for place in places]

        own_groups = None if groups is None else of_train(groups)
        divided = self.divide(of_train(names), of_train(labels), own_groups)
        found = dict(zip(places, divided, strict=True))
        note = (
            f"no split is for validation: {self.val_share:.0%} of train is, as with --val-share "
            f"{self.val_share:g}; 0 leaves it whole"
        )
        return [found.get(place, (split, None)) for place, split in enumerate(splits)], (note,)


def groups_by_pattern(names: Sequence[str], pattern: str) -> list[str]:
    """Each name's group: what the first (or the named group ``group``) of ``pattern`` matches.

    The pattern is searched for in the entire name. A name without a match is a group of its own.
    Raises ValueError if the pattern is not a regular expression, has no group, or matches no name.
    """
    expression = _compiled(pattern)
    key = "group" if "group" in expression.groupindex else 1
    matches = [expression.search(name) for name in names]
    groups = [(match and match[key]) or "" for match in matches]
    if names and not any(groups):
        raise ValueError(f"group_pattern {pattern!r}: matches no name such as {names[0]!r}; fix it")
    # A group's name has no slash in front of it, a name that stands for itself has.
    return [group or f"/{name}" for group, name in zip(groups, names, strict=True)]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"group_pattern {pattern!r}: is not a regular expression ({error}); correct it"
        ) from None
    if not expression.groups:
        raise ValueError(
            f"group_pattern {pattern!r}: has no group; put what names the person or the source "
            "video in parentheses, as in '_(g[0-9]+)_'"
        )
    return expression


def split_videos(labels: Sequence[Labels], groups: Sequence[str], *, val_share: float) -> list[str]:
    """``train`` or ``val`` for each video, given its labels and its group.

    Iterative stratification (Sechidis et al., 2011) over groups: the rarest class first, its groups
    in the order of a hash of their names, so that the result does not depend on the order of the
    videos, and a new video moves few others. If groups of several classes leave a class on one side
    only, groups change sides as long as that helps. A share of 0 or 1 leaves one side empty.
    """
    if val_share in (0, 1):
        return ["val" if val_share else "train"] * len(labels)
    counts = _counts(labels, groups)
    in_val = _stratify(counts, val_share)
    _repair(counts, in_val)
    return ["val" if in_val[group] else "train" for group in groups]


def repaired_splits(
    labels: Sequence[Labels], groups: Sequence[str], splits: Sequence[str]
) -> list[str]:
    """The splits of what is left of videos that were divided: groups change sides, as few as do,
    if a class has lost all that it had on one side, and has two groups."""
    in_val = {group: split == "val" for group, split in zip(groups, splits, strict=True)}
    _repair(_counts(labels, groups), in_val)
    return ["val" if in_val[group] else "train" for group in groups]


def _counts(labels: Sequence[Labels], groups: Sequence[str]) -> dict[str, Counter[int]]:
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for video_labels, group in zip(labels, groups, strict=True):
        counts[group].update(set(video_labels) or {-1})  # without labels: a class of their own
    return counts


def _stratify(counts: dict[str, Counter[int]], val_share: float) -> dict[str, bool]:
    """Whether each group is in validation, decided class by class."""
    members = _members(counts)
    in_val: dict[str, bool] = {}
    for label in sorted(members, key=lambda label: (len(members[label]), label)):
        everyone = members[label]
        target = val_share * sum(counts[group][label] for group in everyone)
        taken = sum(counts[group][label] for group in everyone if in_val.get(group))
        on_train = any(in_val.get(group) is False for group in everyone)
        open_groups = [group for group in everyone if group not in in_val]
        for place, group in enumerate(open_groups):
            size = counts[group][label]
            is_last = place == len(open_groups) - 1
            closer = abs(taken + size - target) < abs(taken - target)
            in_val[group] = closer and (on_train or not is_last)
            taken += size * in_val[group]
            on_train |= not in_val[group]
        if not taken and len(everyone) > 1 and open_groups:  # every group is more than the target
            smallest = min(open_groups, key=lambda group: counts[group][label])
            in_val[smallest] = True
    return in_val


def _members(counts: dict[str, Counter[int]]) -> dict[int, list[str]]:
    """The groups of each class, in the order of a hash of their names."""
    members: dict[int, list[str]] = defaultdict(list)
    for group in sorted(counts, key=lambda name: (_hash(name), name)):
        for label in counts[group]:
            members[label].append(group)
    return members


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest()


def _repair(counts: dict[str, Counter[int]], in_val: dict[str, bool]) -> None:
    """Move groups to the other side as long as that leaves fewer classes on one side only."""
    members = _members(counts)

    def is_missing(label: int) -> bool:
        sides = {in_val[group] for group in members[label]}
        return len(sides) == 1 and len(members[label]) > 1

    def num_missing(group: str, *, moved: bool) -> int:
        """Of the group's classes, those on one side only, with the group as it is or moved."""
        in_val[group] ^= moved
        missing = sum(map(is_missing, counts[group]))
        in_val[group] ^= moved
        return missing

    one_sided = list(filter(is_missing, members))
    while one_sided:
        near = [group for label in one_sided for group in members[label]]
        best = min(
            near,
            key=lambda g: (
                num_missing(g, moved=True) - num_missing(g, moved=False),
                sum(counts[g].values()),  # the smallest of those that help as much
            ),
        )
        if num_missing(best, moved=True) >= num_missing(best, moved=False):
            return
        in_val[best] = not in_val[best]
        one_sided = list(filter(is_missing, members))
