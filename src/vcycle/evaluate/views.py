"""How the scores of a video's views become the video's (paper, section 4).

In: scores before softmax of views. Out: probabilities of classes; the mean of the views' softmax,
or if a video may show several classes the maximum of their sigmoid.
"""

from __future__ import annotations

from torch import Tensor


def view_probabilities(scores: Tensor, *, multi_label: bool) -> Tensor:
    """(views, classes) scores before softmax -> as many probabilities, in float32."""
    scores = scores.float()
    return scores.sigmoid() if multi_label else scores.softmax(1)


def combined(probabilities: Tensor, *, multi_label: bool) -> Tensor:
    """(views, classes) probabilities of one video's views -> (classes,), the video's."""
    return probabilities.amax(0) if multi_label else probabilities.mean(0)
