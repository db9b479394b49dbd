"""The scores of every video, as CSV: ``vcycle eval --scores`` and a run's last validation write it.

In: combined scores. Out: a line a video that was scored: path, labels, views, and a probability for
each class, named in the first line.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from vcycle.data.atomic import write_atomic
from vcycle.data.manifest import Manifest
from vcycle.evaluate.metrics import VideoScores


def write_scores(file: Path, collected: VideoScores, videos: Manifest) -> None:
    """A line of CSV a video that was scored: path, labels, views, and its combined scores."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("path", "labels", "views", *videos.classes))
    for number, video in enumerate(videos.videos):
        views = int(collected.num_views[number])
        if not views:
            continue
        total = collected.scores[number]
        shares = total if collected.multi_label else total / views
        labels = ";".join(videos.classes[label] for label in video.labels)
        numbers = [f"{share:.6g}" for share in shares.tolist()]
        table.writerow((str(video.source), labels, views, *numbers))
    write_atomic(file, text.getvalue())
