"""What the study found of networks and videos, for the recipes to go by (docs/which_schedule.md).

In: a model, what trains it, and how many videos there are. Out: the nearest that was tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from vcycle.config.run import Model


@dataclass(frozen=True)
class Evidence:
    """The share of the baseline's steps that the anneal is to have, and what it came to.

    ``found`` in that share of the steps, ``timed`` beside a baseline of the same time, both "on
    average" where an interval over folds and seeds leaves it open on one of the sets; ``among``
    which network, weights and videos.
    """

    share: Fraction
    found: str
    among: str
    timed: str = "it was ahead of the baseline"


MANY_VIDEOS = 250
"""From here on evidence counts that is from 300 to 400 videos; below, that from 60 to 70. Nothing
was tried between."""
_RESNET = Evidence(
    Fraction(3, 8),
    "it came to the baseline's accuracy on average",
    "a 3D ResNet from random weights under AdamW, 300 and 400 videos",
)
_SGD = replace(
    _RESNET,
    among="a 3D ResNet from random weights under SGD, 300 and 400 videos",
    timed="it was ahead of the baseline on average",
)
_MUON = Evidence(
    Fraction(5, 9),
    "it came near the baseline's accuracy",
    "a 3D ResNet from random weights under Muon, 60 to 70 and 300 videos",
    timed="it was ahead of short baselines and near the accuracy of whole ones",
)
_OTHERS_UNDER_MUON = Evidence(
    Fraction(5, 9),
    "it was level with the baseline, one seed",
    "a narrow SlowFast from random weights under Muon, 300 videos",
    timed="it was ahead of short baselines and level with whole ones, one seed",
)
_TRANSFORMER_UNDER_MUON = replace(
    _OTHERS_UNDER_MUON, among="a small transformer from random weights under Muon, 300 videos"
)
_TRANSFORMER = Evidence(
    Fraction(5, 9),
    "it passed the baseline's accuracy on average on one set, and ended a point below on another",
    "a small transformer from random weights under AdamW, 300 and 400 videos",
    timed="it was ahead of the baseline on average",
)
_FEW_VIDEOS = Evidence(
    Fraction(5, 9),
    "it passed the baseline's accuracy on average",
    "a 3D ResNet from random weights under AdamW, 60 to 70 videos",
    timed="it was ahead of the baseline on average",
)
_FEW_VIDEOS_SGD = replace(
    _FEW_VIDEOS, among="a 3D ResNet from random weights under SGD, 60 to 70 videos"
)
_FEW_VIDEOS_TRANSFORMER = replace(
    _FEW_VIDEOS, among="a small transformer from random weights under AdamW, 60 to 70 videos"
)
_FEW_OTHERS = replace(
    _FEW_VIDEOS, among="a narrow SlowFast from random weights under AdamW, 60 to 70 videos"
)
_OTHERS = Evidence(
    Fraction(5, 9),
    "it passed the baseline's accuracy on average, by more at a rate chosen for that length",
    "a narrow SlowFast from random weights under AdamW, 300 and 400 videos",
    timed="it was ahead of the baseline on average",
)
_MANY_FROM_WEIGHTS = Evidence(
    Fraction(5, 9),
    "it passed the baseline's accuracy",
    "a 3D ResNet from another task's weights under AdamW, 300 videos",
)
_FEW_FROM_WEIGHTS = Evidence(
    Fraction(5, 9),
    "it came to the baseline's accuracy on average, and stayed below it in two of three folds",
    "a 3D ResNet from another task's weights under AdamW, 60 to 70 videos",
    timed="it was ahead of the baseline on average, by less than folds differ by",
)


def from_random_weights(model: Model, num_videos: int, *, optimizer: str) -> Evidence:
    """What is nearest to a model that an optimizer trains from random weights on so many videos."""
    tried = {  # on few videos, on many
        ("TinyResNet3d", "muon"): (_MUON, _MUON),
        ("TinyResNet3d", "adamw"): (_FEW_VIDEOS, _RESNET),
        ("TinyResNet3d", "sgd"): (_FEW_VIDEOS_SGD, _SGD),
        ("VideoTransformer", "adamw"): (_FEW_VIDEOS_TRANSFORMER, _TRANSFORMER),
        ("VideoTransformer", "muon"): (_TRANSFORMER_UNDER_MUON, _TRANSFORMER_UNDER_MUON),
    }
    is_muon = optimizer == "muon"
    others = (_OTHERS_UNDER_MUON,) * 2 if is_muon else (_FEW_OTHERS, _OTHERS)
    family = model.entry.family if model.entry is not None else ""
    few, many = tried.get((family, optimizer), others)
    return few if num_videos < MANY_VIDEOS else many


def from_other_weights(num_videos: int) -> Evidence:
    """What is nearest to a model that is fine-tuned on so many videos."""
    return _FEW_FROM_WEIGHTS if num_videos < MANY_VIDEOS else _MANY_FROM_WEIGHTS
