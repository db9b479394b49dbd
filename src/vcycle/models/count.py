"""Count a model's parameters and the multiply-adds of one clip.

In: a model and a shape. Out: exact counts, from a forward pass on the meta device, which computes
shapes only. Multiply-adds are those of convolutions, linear layers and attention, as papers report
them; norms, activations and pooling are not counted.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from vcycle.models.build import build_model
from vcycle.models.tokens import TokenDrop, set_token_share
from vcycle.schedule.shape import Shape


@dataclass(frozen=True)
class ModelCost:
    """Size and cost of one model at one shape."""

    name: str
    parameters: int
    multiply_adds: int
    """Of one clip, forward pass only."""


def num_parameters(model: nn.Module) -> int:
    """Number of learned values of ``model``; shared parameters count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def multiply_adds(model: nn.Module, shape: Shape, token_share: float = 1.0) -> int:
    """Multiply-adds of one forward pass of ``model`` in eval mode on one clip of ``shape``.

    With a ``token_share`` below 1, of one that keeps so many of its tokens, as in training.
    """
    on_meta = copy.deepcopy(model).to("meta").eval()
    set_token_share(on_meta, token_share)
    for layer in on_meta.modules():
        layer.training = isinstance(layer, TokenDrop)
        if isinstance(layer, (_BatchNorm, nn.LayerNorm)):
            layer.forward = nn.Identity().forward  # type: ignore[method-assign]  # slow on meta
    clips = torch.empty((1, 3, shape.frames, shape.height, shape.width), device="meta")
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        on_meta(clips)
    return int(counter.get_total_flops()) // 2


def multiply_adds_or_none(model: nn.Module, shape: Shape, token_share: float = 1.0) -> int | None:
    """As ``multiply_adds``; None of a model that the meta device cannot run."""
    try:
        return multiply_adds(model, shape, token_share)
    except Exception:  # a model of one's own may do what computes no shapes, and raise anything
        return None


def model_costs(shape: Shape, *, names: Iterable[str]) -> list[ModelCost]:
    """Cost at ``shape`` of each model in ``names``, with 400 classes."""
    costs = []
    for name in names:
        with torch.device("meta"):
            model = build_model(name, num_classes=400)
        costs.append(ModelCost(name, num_parameters(model), multiply_adds(model, shape)))
    return costs
