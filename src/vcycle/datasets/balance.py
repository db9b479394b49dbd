"""What the splits of a manifest hold: a table of classes, and warnings before a run is spoilt.

A manifest goes in, lines for people come out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath

from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video
from vcycle.schedule.messages import counted

_MAX_ROWS = 30  # of classes in the table
_IMBALANCE = 10  # times as many videos of one class as of another
_VIDEOS_PER_NAME = 20  # more of one name but for a counter are just the videos of a class
_BEFORE_DIGITS = r"(.+?)[0-9]+[.][^/.]*$"
_GROUP_PATTERNS = (
    *(rf"(.+){mark}[^/{mark}]*$" for mark in "_ -"),
    r"(.+)[.][^/.]*[.][^/.]*$",
    _BEFORE_DIGITS,
)
"""What comes before a counter in a path: before the last mark of a kind, or before its digits."""
_COPY = re.compile(
    r"^copy of |([ _-]*\(\d+\)|[ _-]+(copy|kopie|copie)([ _-]?\d+)?)$", re.IGNORECASE
)
_COUNTER = re.compile(r"([ _.-]+[a-zA-Z]{0,4})?\d+$")


def split_table(manifest: Manifest) -> str:
    """The videos of each class in each split, a line a class."""
    counts = _counts(manifest)
    splits = sorted(counts, key=lambda split: (_order(split), split))
    names = [_shortened(name) for name in manifest.classes[:_MAX_ROWS]]
    width = max(map(len, [*names, "all classes"]))
    lines = [f"{'class':<{width}}" + "".join(f"{split:>9}" for split in splits)]
    for label, name in enumerate(names):
        row = "".join(f"{counts[split][label]:>9,}" for split in splits)
        lines.append(f"{name:<{width}}{row}")
    if manifest.num_classes > _MAX_ROWS:
        lines.append(f"... and {manifest.num_classes - _MAX_ROWS} more")
    videos = Counter(video.split for video in manifest.videos)
    total = "".join(f"{videos[split]:>9,}" for split in splits)
    return "\n".join([*lines, f"{'all classes':<{width}}{total}"])


def split_warnings(manifest: Manifest, *, divided: bool) -> list[str]:
    """What would spoil training or its score: a line each.

    ``divided`` is whether train and val were drawn, and may be drawn again.
    """
    counts = _counts(manifest)
    lines = []
    if manifest.num_classes == 1:
        lines.append(
            f"all videos are of one class, {manifest.classes[0]}; if it is a folder of several, "
            "index that folder"
        )
    for split in ("train", "val"):
        if split not in counts:
            known = ", ".join(sorted(counts))
            lines.append(f"no video is in {split}, all are in {known}; a run needs train and val")
    lines += _without_videos(manifest, counts)
    if {"train", "val"} <= set(counts):
        lines += _missing_classes(manifest, counts)
        lines += _in_both(manifest)
        lines += _near_identical(manifest, divided=divided)
    return [*lines, *_imbalance(manifest, counts.get("train", Counter()))]


def _counts(manifest: Manifest) -> dict[str, Counter[int]]:
    """The videos of each label, by split."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for video in manifest.videos:
        counts[video.split].update(set(video.labels))
    return dict(counts)


def _order(split: str) -> int:
    return {"train": 0, "val": 1, "test": 2}.get(split, 3)


def _shortened(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:37]}..."


def _without_videos(manifest: Manifest, counts: dict[str, Counter[int]]) -> Iterable[str]:
    """A line on classes of which none of the listed videos is here and can be read."""
    gone = [
        name
        for label, name in enumerate(manifest.classes)
        if not any(of_split[label] for of_split in counts.values())
    ]
    if gone:
        yield f"no video of {_some(gone)} is here and can be read; replace them, or leave it out"


def _missing_classes(manifest: Manifest, counts: dict[str, Counter[int]]) -> Iterable[str]:
    for split, other in (("train", "val"), ("val", "train")):
        lacking = [
            name
            for label, name in enumerate(manifest.classes)
            if counts[other][label] and not counts[split][label]
        ]
        if lacking:
            verb = "is" if len(lacking) == 1 else "are"
            fate = f"{verb} never learned" if split == "train" else f"{verb} not scored"
            yield f"{split} has no video of {_some(lacking)}, which {fate}; add some"


def _some(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{len(names)} classes ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def _in_both(manifest: Manifest) -> Iterable[str]:
    """A line if files are on both sides, whole or in parts."""
    sides: dict[str, set[str]] = {"train": set(), "val": set()}
    for video in manifest.videos:
        if video.split in sides and not video.num_bytes:  # a shard's name is not a video's
            sides[video.split].add(video.path)
    if same := sorted(sides["train"] & sides["val"]):
        yield (
            f"{counted(len(same), 'video')} in train and in val, such as {same[0]}, which gives "
            f"too good a score; take them out of one of the two"
        )


def _near_identical(manifest: Manifest, *, divided: bool) -> Iterable[str]:
    """Names on both sides that differ only by a counter at the end, or are copies."""
    by_class: dict[tuple[int, ...], list[tuple[str, Video]]] = defaultdict(list)
    for video in manifest.videos:
        if video.split in ("train", "val"):
            by_class[video.labels].append((PurePosixPath(video.path).stem, video))
    pairs: list[tuple[str, str]] = []
    for named in by_class.values():
        bare = [(_COPY.sub("", stem), video) for stem, video in named]
        kept = [(_COUNTER.sub("", stem), video) for stem, video in bare]
        num_names = len({name for name, _ in kept})
        is_numbered = num_names < 2 or len(kept) > _VIDEOS_PER_NAME * num_names
        pairs += _on_both_sides(bare if is_numbered else kept)
    pairs = [(first, second) for first, second in pairs if first != second]
    if pairs:
        first, second = min(pairs)
        pattern = _pattern_of(first, second)
        fix = "keep them together"
        if not divided:
            fix = "the splits that come with the videos give too good a score"
        elif pattern:
            fix += f", as with --group-pattern '{pattern}'"
        if PurePosixPath(first).name != PurePosixPath(second).name:
            first, second = PurePosixPath(first).name, PurePosixPath(second).name
        yield (
            f"{counted(len(pairs), 'pair')} of nearly the same name in train and val, such as "
            f"{first} and {second}; if they show one scene or person, {fix}"
        )


def _pattern_of(first: str, second: str) -> str | None:
    """A group pattern by which two paths are of one group; None if none is known.

    That whose group is the longest; one that parts digits from letters only if no other does.
    """
    groups = {}
    for pattern in _GROUP_PATTERNS:
        matches = [re.search(pattern, path) for path in (first, second)]
        names = {match[1] for match in matches if match}
        if all(matches) and len(names) == 1:
            groups[pattern] = names.pop()
    by_mark = [pattern for pattern in groups if pattern != _BEFORE_DIGITS]
    return max(by_mark or groups, key=lambda pattern: len(groups[pattern]), default=None)


def _on_both_sides(named: list[tuple[str, Video]]) -> Iterable[tuple[str, str]]:
    """One path of train and one of val for each name that is in both, parts of a video aside."""
    sides: dict[str, dict[str, str]] = defaultdict(dict)
    for name, video in named:
        if name and not video.num_bytes:  # a shard's name is not a video's
            sides[name].setdefault(video.split, video.path)
    return [(paths["train"], paths["val"]) for paths in sides.values() if len(paths) == 2]


def _imbalance(manifest: Manifest, counts: Counter[int]) -> Iterable[str]:
    """A line if one class has many times as many videos for training as another."""
    if len(counts) < 2:
        return
    (most, many), (least, few) = counts.most_common()[0], counts.most_common()[-1]
    if many >= _IMBALANCE * few:
        yield (
            f"train has {counted(many, 'video')} of {manifest.classes[most]} and {few:,} of "
            f"{manifest.classes[least]}, which will be learned worse; add videos of it"
        )
