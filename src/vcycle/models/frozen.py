"""Freeze parameters by name, and the batch norms among them.

In: a model and patterns. Out: the same model; what is frozen gets no gradient, and a frozen batch
norm normalises by its running statistics, which stay as they are, whatever mode the model is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vcycle.models.norm import SubBatchNorm3d
from vcycle.models.wrapped import unwrapped

_MOST_NAMED = 12


def freeze(model: nn.Module, patterns: Sequence[str]) -> int:
    """Freeze the parameters that a pattern matches, or that lie in a layer that it matches.

    Patterns are the shell's, over dots too: ``s1.*``, ``*.bn``; without a wildcard they name one
    layer or parameter. A batch norm whose parameters are all frozen stays in evaluation mode, until
    one of them is trained again and the model put into training mode; so does one without any that
    a pattern matches, for good.
    Returns how many parameters, as tensors, are frozen.

    Raises ValueError if a pattern matches nothing.
    """
    model = unwrapped(model)
    names = [name for name, _ in model.named_parameters()]
    layers = {name.rpartition(".")[0] for name in names}
    layers |= {layer[:end] for layer in layers for end, sign in enumerate(layer) if sign == "."}
    layers.discard("")
    norms = {name: each for name, each in model.named_modules() if isinstance(each, _BatchNorm)}
    bare = [name for name, norm in norms.items() if not list(norm.parameters(False))]
    matched: set[str] = set()
    for pattern in patterns:
        found = [name for name in (*names, *bare) if _matches(name, pattern)]
        if not found:
            near = get_close_matches(pattern.rstrip(".*"), sorted(layers) + names, n=3, cutoff=0.4)
            first = [name for name, _ in model.named_children()][:_MOST_NAMED]
            known = f"near it: {', '.join(near)}; " if near else ""
            raise ValueError(
                f"freeze {pattern}: the model has no such layer; {known}it has {', '.join(first)}"
            )
        matched.update(found)
    for name in matched.intersection(names):
        model.get_parameter(name).requires_grad_(False)
    for name, norm in norms.items():
        if name in matched or (name not in bare and _is_frozen(norm)):
            norm.register_forward_pre_hook(_stay_in_evaluation)
    return sum(not parameter.requires_grad for parameter in model.parameters())


def is_in_training(layer: nn.Module) -> bool:
    """Whether a norm takes statistics of its clips in a forward pass; a frozen one does not."""
    is_held = any(hook is _stay_in_evaluation for hook in layer._forward_pre_hooks.values())
    return layer.training and not (is_held and _is_frozen(layer))


def training_norms(model: nn.Module) -> list[_BatchNorm]:
    """The batch norms, of any kind, that take statistics of their clips in a forward pass."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and is_in_training(m)]


def has_norm_groups(model: nn.Module) -> bool:
    """Whether a layer of a model in training takes statistics of groups; frozen ones take none."""
    return any(isinstance(norm, SubBatchNorm3d) for norm in training_norms(model))


def _is_frozen(layer: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a parameter's name, or that of a layer around it."""
    ends = [end for end, sign in enumerate(name) if sign == "."]
    return any(fnmatchcase(each, pattern) for each in (name, *(name[:end] for end in ends)))


def _stay_in_evaluation(layer: nn.Module, _: Any) -> None:
    if _is_frozen(layer):
        layer.training = False
