"""What a trained model says of itself: all that predicting takes beside the weights.

In: a run's configuration and manifest, or the plain values that a file of weights keeps. Out: a
TrainedModel.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, get_type_hints

from vcycle.config.fields import typed
from vcycle.config.run import RunConfig
from vcycle.data.batch import MEAN, STD
from vcycle.data.manifest import Manifest
from vcycle.data.tables import check_line
from vcycle.schedule.shape import Shape, ShapeRule


@dataclass(frozen=True)
class TrainedModel:
    """What a network is, how its clips are made, and what its scores mean.

    Args:
        name, options: of ``build_model``.
        classes: of the scores, in order.
        multi_label: a video may show several classes: scores are for a sigmoid, not a softmax.
        shape: T x H x W of a clip, as text.
        stride, frame_rate, segments: which frames, as in ``vcycle.config.run.Data``.
        short_side: least and largest short side in pixels that a video was resized to in training.
        mean, std: of the pixels in [0, 1], subtracted and divided by.
        steps: optimizer steps that the weights have had.
        rule: the shapes that the run kept to; any, in files of versions that did not keep it.
    """

    name: str
    options: dict[str, Any]
    classes: tuple[str, ...]
    multi_label: bool
    shape: str
    stride: int
    frame_rate: float | None
    segments: bool
    short_side: tuple[int, int]
    mean: float
    std: float
    steps: int
    rule: ShapeRule = ShapeRule()

    @classmethod
    def of_run(cls, config: RunConfig, manifest: Manifest, *, steps: int) -> TrainedModel:
        """What a run trains."""
        return cls(
            name=config.model.name,
            options=config.model.options,
            classes=manifest.classes,
            multi_label=manifest.multi_label,
            shape=str(config.baseline.shape),
            stride=config.data.stride,
            frame_rate=config.data.frame_rate,
            segments=config.data.segments,
            short_side=config.data.short_side,
            mean=MEAN,
            std=STD,
            steps=steps,
            rule=config.multigrid.rule,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainedModel:
        """From what ``to_dict`` gave, be it through JSON.

        Raises ValueError if a value is missing or of another type.
        """
        _check_plain(values)
        known: dict[str, Any] = {}
        hints = get_type_hints(cls)
        for field in fields(cls):
            if isinstance(values, dict) and field.name in values:
                known[field.name] = typed(hints[field.name], values[field.name], field.name)
            elif field.default is MISSING:
                raise ValueError(f"no {field.name} in its metadata")
        if not 0 < known["std"] < math.inf or not math.isfinite(known["mean"]):
            raise ValueError(f"mean {known['mean']}, std {known['std']}: no pixels have these")
        rate, (low, high) = known["frame_rate"], known["short_side"]
        if known["stride"] < 1 or not low <= high or not (rate is None or 0 < rate < math.inf):
            raise ValueError(f"stride {known['stride']}, short side {low} to {high}, rate {rate}")
        if not known["classes"]:
            raise ValueError("no classes")
        for name in known["classes"]:
            check_line(name, "class")
        shape = Shape.parse(known["shape"])
        known.get("rule", ShapeRule()).scale(shape, frames=1, side=1)  # as every plan does
        return cls(**known)


def _check_plain(values: object) -> None:
    """Raise ValueError unless values are as JSON has them; a tensor cannot be compared with any."""
    left = [values]
    while left:
        each = left.pop()
        if isinstance(each, dict | list | tuple | set):
            left += each.values() if isinstance(each, dict) else each
        elif not isinstance(each, str | int | float | None):
            raise ValueError(f"a value of type {type(each).__name__} in its metadata")
