"""Metrics and their intervals against scikit-learn on random scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics

from vcycle.evaluate.intervals import confusion, intervals
from vcycle.evaluate.metrics import (
    VideoScores,
    average_precision,
    mean_average_precision,
    mean_class_accuracy,
)


def collected(seed: int, *, videos: int = 60, classes: int = 7) -> tuple[VideoScores, np.ndarray]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (videos,), generator=generator)
    scores = torch.randn(videos, classes, generator=generator)
    scores[torch.arange(videos), labels] += 1
    found = VideoScores(num_videos=videos, num_classes=classes, multi_label=False)
    found.add(torch.arange(videos), scores, labels)
    return found, scores.double().softmax(1).numpy()


@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_one_label_are_those_of_scikit_learn(seed: int) -> None:
    found, shares = collected(seed)
    labels, values = found.labels.numpy(), found.compute()
    predicted = shares.argmax(1)
    assert values["top1"] == pytest.approx(metrics.accuracy_score(labels, predicted))
    top5 = metrics.top_k_accuracy_score(labels, shares, k=5, labels=range(7))
    assert values["top5"] == pytest.approx(top5)
    balanced = metrics.balanced_accuracy_score(labels, predicted)
    assert values["mean_class_accuracy"] == pytest.approx(balanced)
    assert confusion(found) == metrics.confusion_matrix(labels, predicted).tolist()
    loss = metrics.log_loss(labels, shares, labels=range(7))
    assert values["loss"] == pytest.approx(loss, rel=1e-5)
    sure = intervals(found)
    assert sure.keys() == {"top1", "top5", "mean_class_accuracy"}
    for name, (low, high) in sure.items():
        assert low < values[name] < high


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_scikit_learns_with_weights_and_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 8, (40, 3)) / 8  # many are equal
    labels = (rng.random((40, 3)) < 0.3).astype(np.int64)
    counts = rng.multinomial(40, np.full(40, 1 / 40), size=4)
    expected = np.array(
        [
            [
                metrics.average_precision_score(labels[:, k], scores[:, k], sample_weight=weights)
                for weights in counts
            ]
            for k in range(3)
        ]
    )
    for k in range(3):
        np.testing.assert_allclose(
            average_precision(scores[:, k], labels[:, k], counts), expected[k]
        )
    np.testing.assert_allclose(mean_average_precision(scores, labels, counts), expected.mean(0))


def test_resamples_of_mean_class_accuracy_are_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    labels, predicted = rng.integers(0, 4, 30), rng.integers(0, 4, 30)
    counts = rng.multinomial(30, np.full(30, 1 / 30), size=5)
    found = mean_class_accuracy((labels == predicted).astype(float), labels, counts)
    for value, weights in zip(found, counts, strict=True):
        drawn = np.repeat(np.arange(30), weights)
        expected = metrics.balanced_accuracy_score(labels[drawn], predicted[drawn])
        assert value == pytest.approx(expected)


def test_an_interval_narrows_with_more_videos() -> None:
    few, many = (intervals(collected(0, videos=n)[0])["top1"] for n in (30, 3000))
    assert many[1] - many[0] < (few[1] - few[0]) / 5


def test_the_same_videos_give_the_same_intervals() -> None:
    assert intervals(collected(1)[0]) == intervals(collected(1)[0])


def test_a_class_without_videos_and_no_videos_at_all() -> None:
    found = VideoScores(num_videos=2, num_classes=3, multi_label=False)
    assert intervals(found) == {}
    assert confusion(found) == [[0, 0, 0]] * 3
    found.add(torch.tensor([0, 1]), torch.eye(3)[:2], torch.tensor([0, 1]))
    assert found.compute()["mean_class_accuracy"] == 1
    assert "top5" not in found.compute()


def test_of_equal_scores_the_first_is_the_prediction_in_every_figure() -> None:
    """As with argmax: two of six videos show class 0, and a model that knows nothing has those."""
    found = VideoScores(num_videos=6, num_classes=6, multi_label=False)
    found.add(torch.arange(6), torch.zeros(6, 6), torch.tensor([0, 0, 1, 2, 3, 5]))
    values = found.compute()
    assert (values["top1"], values["top5"]) == (2 / 6, 5 / 6)
    assert values["mean_class_accuracy"] == 1 / 5
    assert [row[0] for row in confusion(found)] == [2, 1, 1, 1, 0, 1]
    for name, (low, high) in intervals(found).items():
        assert low < values[name] <= high


def test_an_interval_is_of_95_percent() -> None:
    """Of many videos, 1.96 standard errors on each side."""
    found, _ = collected(0, videos=3000)
    share = found.compute()["top1"]
    low, high = intervals(found)["top1"]
    assert (high - low) / 2 == pytest.approx(1.96 * (share * (1 - share) / 3000) ** 0.5, rel=0.07)


def test_the_interval_of_mean_class_accuracy_is_of_classes() -> None:
    """Of a class of 50 all are right and of one of 10 none, whichever videos are drawn."""
    found = VideoScores(num_videos=60, num_classes=2, multi_label=False)
    scores = torch.tensor([[1.0, 0.0]]).expand(60, 2)
    found.add(torch.arange(60), scores, torch.tensor([0] * 50 + [1] * 10))
    assert found.compute()["mean_class_accuracy"] == 0.5
    assert intervals(found)["mean_class_accuracy"] == [0.5, 0.5]
    assert intervals(found)["top1"][0] > 0.6


def test_videos_with_scores_that_are_not_finite_are_taken_for_no_class() -> None:
    """Not for the first, which two of them show."""
    found = VideoScores(num_videos=4, num_classes=3, multi_label=False)
    scores = torch.cat([torch.full((2, 3), torch.nan), torch.eye(3)[1:]])
    found.add(torch.arange(4), scores, torch.tensor([0, 0, 1, 2]))
    assert found.compute()["top1"] == 0.5
    assert confusion(found) == [[0, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_of_several_labels_they_are_ranked_alike_in_the_metric_and_its_interval() -> None:
    """As if all their scores were 0, whichever order they come in."""
    found = VideoScores(num_videos=6, num_classes=2, multi_label=True)
    scores = torch.full((6, 2), torch.nan)
    scores[5] = torch.tensor([3.0, -3.0])
    labels = torch.tensor([[0, 1]] * 5 + [[1, 0]])
    found.add(torch.arange(6), scores, labels)
    values, shares = found.compute(), found.scores.double().numpy()
    raw = mean_average_precision(shares, labels.numpy(), np.ones((1, 6)))
    assert values["map"] == raw[0] == (1 + 5 / 6) / 2
    low, high = intervals(found)["map"]
    assert low <= values["map"] <= high
