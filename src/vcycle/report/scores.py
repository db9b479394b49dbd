"""The scores of a run's last validation, video by video: what is confused with what, and where.

In: ``scores.csv``, as a run and ``vcycle eval --scores`` write it. Out: Scores, its confusion
matrix and its worst mistakes.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vcycle.data.tables import names_of_cell
from vcycle.evaluate.metric_names import SCORE_COLUMNS

_AGAIN = "write it again with `vcycle eval RUN --scores`"


@dataclass(frozen=True)
class Scores:
    """Combined scores of videos.

    Args:
        paths: of the videos, as the manifest has them.
        labels: of each video.
        probabilities: (videos, classes); NaN if a view's scores were not finite.
    """

    paths: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...]
    probabilities: NDArray[np.float64]

    @property
    def finite(self) -> NDArray[np.bool_]:
        """(videos,) of those that have probabilities."""
        found: NDArray[np.bool_] = np.isfinite(self.probabilities.sum(1))
        return found


@dataclass(frozen=True)
class Mistake:
    """A video whose probability of a class that it does not show is high, or that has none."""

    path: str
    labels: tuple[int, ...]
    predicted: int | None
    """None if its scores are not finite: its probabilities are then 0."""
    probability: float
    label_probability: float
    """The greatest one of its own labels; 0 if it has none."""


def read_scores(file: Path, classes: Sequence[str], *, multi_label: bool) -> Scores:
    """Read scores of ``distinct`` classes. Raises ValueError if the file is not one of those."""
    try:
        with file.open(newline="", encoding="utf-8") as text:
            lines = list(csv.reader(text))
        if lines[:1] == [[*SCORE_COLUMNS, *classes]]:
            return _scores(lines[1:], classes, multi_label=multi_label)
    except (KeyError, ValueError, csv.Error) as error:
        raise ValueError(f"scores file {file}: it cannot be read ({error}); {_AGAIN}") from None
    raise ValueError(f"scores file {file}: it is of other classes than the run; {_AGAIN}")


def _scores(lines: list[list[str]], classes: Sequence[str], *, multi_label: bool) -> Scores:
    numbers = {name: label for label, name in enumerate(classes)}
    paths, labels, shares = [], [], []
    for path, names, _, *scores in lines:
        several = names_of_cell(names) if multi_label else [names]
        paths.append(path)
        labels.append(tuple(numbers[name] for name in several))
        shares.append([float(score) for score in scores])
    probabilities = np.array(shares, np.float64).reshape(len(lines), len(classes))
    return Scores(tuple(paths), tuple(labels), probabilities)


def confusion(scores: Scores) -> NDArray[np.int64]:
    """(classes, classes) videos of the true class (rows) taken for a class, if each has one.

    Those with scores that are not finite are taken for none.
    """
    num_classes = scores.probabilities.shape[1]
    counts = np.zeros((num_classes, num_classes), np.int64)
    true = np.array([labels[0] for labels in scores.labels], np.int64)[scores.finite]
    np.add.at(counts, (true, scores.probabilities[scores.finite].argmax(1)), 1)
    return counts


def worst_mistakes(scores: Scores, count: int, *, multi_label: bool) -> list[Mistake]:
    """The most confident wrong predictions, the worst first; ties in the order of the file.

    Of a video with one label it is the most probable class, if that is wrong; of one with several
    it is the most probable class that it does not show, if more probable than one that it does.
    Videos with scores that are not finite are wrong too, and come last.
    """
    found = []
    videos = zip(scores.paths, scores.labels, scores.probabilities, scores.finite, strict=True)
    for path, labels, shares, is_finite in videos:
        if not is_finite:
            found.append(Mistake(path, labels, None, 0.0, 0.0))
            continue
        others = shares.copy()
        others[list(labels)] = -1
        predicted = int(others.argmax())
        own = [float(shares[label]) for label in labels]
        least = min(own, default=0.0) if multi_label else own[0]
        # The first of equal classes is the prediction, as in the confusion matrix.
        is_wrong = predicted == shares.argmax() if not multi_label else others[predicted] > least
        if is_wrong:
            share = float(others[predicted])
            found.append(Mistake(path, labels, predicted, share, max(own, default=0.0)))
    return sorted(found, key=lambda mistake: -mistake.probability)[:count]
