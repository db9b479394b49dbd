"""What a model costs: parameters, and the multiply-adds of one clip.

In: a model and a shape. Out: exact counts, from a pass that computes shapes only (the meta device:
no weights, no arithmetic). Multiply-adds are those of convolutions, linear layers and attention
products, as the field reports them; norms, activations and pooling are not counted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vcycle.models.build import build_model
from vcycle.schedule.shape import Shape


@dataclass(frozen=True)
class ModelCost:
    """One line of the list of models."""

    name: str
    parameters: int
    multiply_adds: int
    """Of one clip, forward only, at the shape that was asked for."""


def num_parameters(model: nn.Module) -> int:
    """How many numbers `model` learns; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def multiply_adds(model: nn.Module, shape: Shape) -> int:
    """The multiply-adds of one clip of `shape` in one forward pass of `model` in eval mode."""
    on_meta = copy.deepcopy(model).to("meta").eval()
    clips = torch.empty((1, 3, shape.frames, shape.height, shape.width), device="meta")
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        on_meta(clips)
    return int(counter.get_total_flops()) // 2


def model_costs(shape: Shape, *, names: Iterable[str]) -> list[ModelCost]:
    """Name, parameters and multiply-adds at `shape` of each model in `names`, with 400 classes."""
    costs = []
    for name in names:
        with torch.device("meta"):
            model = build_model(name, num_classes=400)
        costs.append(ModelCost(name, num_parameters(model), multiply_adds(model, shape)))
    return costs
