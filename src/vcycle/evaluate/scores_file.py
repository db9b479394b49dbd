"""The scores of every video, as CSV: ``vcycle eval --scores`` and a run's last validation write it.

In: combined scores. Out: a line a video that was scored: path (and part, if a line of the manifest
is about one), labels, views, and a probability for each class, named in the first line. Several
labels are joined by ``;``, a name that holds one or a quotation mark in quotes, as in CSV. A name
that two classes have is followed by the class's number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vcycle.data.manifest import Manifest
from vcycle.data.tables import list_cell, write_table
from vcycle.evaluate.metric_names import SCORE_COLUMNS, distinct
from vcycle.evaluate.metrics import VideoScores


def write_scores(file: Path, collected: VideoScores, videos: Manifest) -> None:
    """A line of CSV a video that was scored: path, labels, views, and its combined scores."""
    columns = (*SCORE_COLUMNS, *distinct(videos.classes))
    write_table(file, columns, _rows(collected, videos))


def _rows(collected: VideoScores, videos: Manifest) -> Iterator[tuple[object, ...]]:
    classes = distinct(videos.classes)
    for number, video in enumerate(videos.videos):
        views = int(collected.num_views[number])
        if not views:
            continue
        total = collected.scores[number].double()
        shares = total if collected.multi_label else total / views
        names = [classes[label] for label in dict.fromkeys(video.labels)]
        labels = list_cell(names) if collected.multi_label else names[0]
        numbers = [f"{share:.9g}" for share in shares.tolist()]  # float32 that differ stay so
        yield (video.name, labels, views, *numbers)
