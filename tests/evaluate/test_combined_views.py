"""How views are combined, on scores made by hand."""

from __future__ import annotations

import pytest
import torch

from vcycle.evaluate.metrics import VideoScores, combined, view_probabilities

# One view is sure of class 0, two prefer class 1 a little: the softmax's mean is class 1's, that of
# the scores themselves, like the maximum, is class 0's.
SCORES = torch.tensor([[9.0, 0.0, 0.0], [0.0, 1.5, 0.0], [0.0, 1.5, 0.0], [0.0, 1.5, 0.0]])


def test_the_mean_is_that_of_the_softmax() -> None:
    shares = combined(view_probabilities(SCORES, multi_label=False), multi_label=False)
    sure = torch.tensor([9.0, 0.0, 0.0]).exp() / (torch.tensor(9.0).exp() + 2)
    little = torch.tensor([0.0, 1.5, 0.0]).exp() / (torch.tensor(1.5).exp() + 2)
    torch.testing.assert_close(shares, (sure + 3 * little) / 4)
    assert shares.argmax() == 1
    assert SCORES.mean(0).argmax() == 0
    assert float(shares.sum()) == pytest.approx(1)


def test_of_several_labels_it_is_the_maximum_of_the_sigmoid() -> None:
    scores = torch.tensor([[2.0, -1.0], [-3.0, 0.0]])
    shares = combined(view_probabilities(scores, multi_label=True), multi_label=True)
    torch.testing.assert_close(shares, torch.tensor([2.0, 0.0]).sigmoid())


def test_an_evaluation_combines_them_so_in_any_order_of_views() -> None:
    # Video 0 is of class 1, which only the softmax's mean finds; video 1 is of class 2.
    scores = torch.cat([SCORES, torch.tensor([[0.0, 0.0, 3.0]])])
    videos, labels = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([1, 1, 1, 1, 2])
    order = torch.tensor([3, 4, 0, 2, 1])
    found = VideoScores(num_videos=2, num_classes=3, multi_label=False)
    for some in (order[:2], order[2:]):
        found.add(videos[some], scores[some], labels[some])
    result = found.compute()
    assert result["top1"] == 1
    expected = combined(view_probabilities(SCORES, multi_label=False), multi_label=False)[1].log()
    other = torch.tensor([0.0, 0.0, 3.0]).log_softmax(0)[2]
    assert result["loss"] == pytest.approx(float(-(expected + other) / 2))


def test_an_evaluation_of_several_labels_takes_the_maximum() -> None:
    # Class 0: video 0's best view beats video 1's, its mean does not.
    scores = torch.tensor([[3.0], [-9.0], [2.0], [2.0]])
    labels = torch.tensor([[1.0], [1.0], [0.0], [0.0]])
    found = VideoScores(num_videos=2, num_classes=1, multi_label=True)
    found.add(torch.tensor([0, 0, 1, 1]), scores, labels)
    assert found.compute()["map"] == 1
