"""Accuracies of videos from the scores of their views, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import ReduceOp

from vcycle.data.manifest import Manifest
from vcycle.evaluate.evaluate import summary
from vcycle.evaluate.metrics import VideoScores


def multi_label_scores(labels: list[list[int]]) -> dict[str, float]:
    """Of three videos with the same scores: each class ranks the first video first."""
    scores = VideoScores(num_videos=3, num_classes=3, multi_label=True)
    ranked = torch.tensor([[3.0, 3.0, 3.0], [2.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
    scores.add(torch.arange(3), ranked, torch.tensor(labels, dtype=torch.float32))
    return scores.compute()


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([[1, 0, 0], [0, 0, 0], [0, 1, 1]], (1 + 1 / 3 + 1 / 3) / 3),
        ([[1, 0, 0], [0, 1, 0], [1, 0, 0]], ((1 + 2 / 3) / 2 + 1 / 2) / 2),  # one class is absent
        ([[0, 0, 0], [0, 1, 0], [0, 0, 0]], 1 / 2),  # all but one are
        ([[0, 0, 0], [0, 0, 0], [0, 0, 0]], 0),
    ],
)
def test_mean_average_precision_is_over_the_classes_that_are_shown(labels, expected):
    found = multi_label_scores(labels)
    assert found == {"videos": 3, "map": pytest.approx(expected)}


@pytest.mark.parametrize(("multi_label", "metric"), [(True, "map"), (False, "top1")])
def test_without_a_video_that_could_be_scored_every_accuracy_is_0(multi_label, metric):
    found = VideoScores(num_videos=2, num_classes=3, multi_label=multi_label).compute()
    assert (found["videos"], found[metric]) == (0, 0)


def test_a_score_that_is_not_a_number_is_wrong_and_the_loss_stays_one():
    """Not the first class, and nothing that JSON cannot hold."""
    scores = VideoScores(num_videos=2, num_classes=3, multi_label=False)
    views = torch.tensor([[torch.nan, torch.nan, torch.nan], [1.0, 2.0, 3.0]])
    scores.add(torch.arange(2), views, torch.tensor([0, 2]))
    found = scores.compute()
    assert found["top1"] == 0.5
    assert 0 < found["loss"] < 100
    assert (found["videos"], found["nonfinite_videos"]) == (2, 1)
    empty = VideoScores(num_videos=2, num_classes=3, multi_label=False).compute()
    assert 0 < empty["loss"] < 100


def test_coverage_is_of_the_videos_that_were_scored(synthetic_videos: Path) -> None:
    """Of 16 that are listed 12 are here, of which 9 could be read."""
    videos = replace(Manifest.read(synthetic_videos).split("val"), listed=(("val", 16),))
    size = {"num_videos": len(videos), "num_classes": videos.num_classes}
    scores = VideoScores(**size, multi_label=False)
    read = torch.arange(9)
    scores.add(read, torch.zeros(9, videos.num_classes), read % videos.num_classes)
    assert len(videos) == 12
    assert summary(scores, videos)["coverage"] == 9 / 16
    longer = replace(videos, listed=(("val", 10),))  # its table was added to since
    assert summary(scores, longer)["coverage"] == 9 / 12


@pytest.mark.parametrize("multi_label", [True, False])
def test_a_video_of_which_one_view_has_no_finite_scores_is_counted_once(multi_label):
    scores = VideoScores(num_videos=2, num_classes=3, multi_label=multi_label)
    views = torch.tensor([[0.0, torch.nan, 0.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    labels = torch.tensor([0, 0, 2])
    scores.add(torch.tensor([0, 0, 1]), views, torch.eye(3)[labels] if multi_label else labels)
    assert scores.compute()["nonfinite_videos"] == 1


@pytest.mark.parametrize("loses", [True, False])
def test_a_video_with_no_finite_score_in_one_process_has_none_in_all(
    monkeypatch: pytest.MonkeyPatch, loses: bool
) -> None:
    """Whether or not the maximum of a NaN and a number is the number, which is left open."""
    own, other = (VideoScores(num_videos=2, num_classes=2, multi_label=True) for _ in "ab")
    labels = torch.tensor([[1, 0], [0, 1]])
    own.add(torch.arange(2), torch.tensor([[torch.nan, 0.0], [0.0, 1.0]]), labels)
    other.add(torch.arange(2), torch.tensor([[5.0, -5.0], [0.0, 1.0]]), labels)
    theirs = iter((other.scores, other.labels, other.num_views, other.nonfinite))

    def reduce(tensor: torch.Tensor, operation: object) -> None:
        each = next(theirs)
        maximum = torch.fmax if loses else torch.maximum
        tensor.copy_(tensor + each if operation == ReduceOp.SUM else maximum(tensor, each))

    monkeypatch.setattr("vcycle.evaluate.metrics.all_reduce", reduce)
    own.gather(SimpleNamespace(world_size=2, device=torch.device("cpu")))
    assert own.scores[0].isnan().all()
    assert own.scores[1].isfinite().all()
    assert own.num_views.tolist() == [2, 2]
    assert own.compute() == {"videos": 2, "nonfinite_videos": 1, "map": 0.75}
