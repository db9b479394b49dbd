"""Layer-wise decay: the rate falls from the classifier to the input (Bao et al., BEiT, 2022).

In: a model and its optimizer groups. Out: groups split by layer, with ``lr_scale``, which timm too
uses: ``vcycle.apply_step`` and ``vcycle.PlanLR`` multiply a group's rate by it.
"""

from __future__ import annotations

from typing import Any

from torch import nn


def layer_depths(model: nn.Module) -> dict[str, int]:
    """Parameter name -> its layer, from 0 at the input, in the order of ``model.parameters()``.

    A model may say so itself, by a method ``layer_depth(name) -> int``. Of others, the children of
    every ``nn.Sequential`` and ``nn.ModuleList`` directly in it are layers, one after the other,
    or its own, if it is an ``nn.Sequential`` without any; a model that does no more than wrap
    another, its only parameters, has the layers of that one.
    What comes before them, such as embeddings and the stem, is layer 0; what comes between them
    belongs to the layer before; what comes after, such as the classifier, is the last layer.

    Raises ValueError if the model is neither.
    """
    names = [name for name, _ in model.named_parameters()]
    own: Any = getattr(model, "layer_depth", None)
    if callable(own):
        return {name: own(name) for name in names}
    children = _with_parameters(model)
    containers = [
        place
        for place, (_, child) in enumerate(children)
        if isinstance(child, nn.Sequential | nn.ModuleList)
    ]
    if not containers and len(children) == 1 and not list(model.parameters(recurse=False)):
        [(wrapped, child)] = children
        return {f"{wrapped}.{name}": depth for name, depth in layer_depths(child).items()}
    if not containers and isinstance(model, nn.Sequential):
        return _depths(names, {name: place for place, (name, _) in enumerate(children)})
    if not containers:
        raise ValueError(
            "layer_decay: the model has no nn.Sequential or nn.ModuleList of layers; give it a "
            "method layer_depth(name), which returns the layer of a parameter, from 0 at the input"
        )
    depth = 0
    depths: dict[str, int] = {}  # of modules, by name
    for place, (name, child) in enumerate(children):
        if place in containers:
            for key, _ in _with_parameters(child):
                depth += 1
                depths[f"{name}.{key}"] = depth
        else:
            depths[name] = depth + (place > containers[-1])
    return _depths(names, depths)


def _depths(names: list[str], of_modules: dict[str, int]) -> dict[str, int]:
    """Parameter name -> the layer of the module that it is in, 0 of one that has none."""
    return {
        name: next((of for layer, of in of_modules.items() if name.startswith(f"{layer}.")), 0)
        for name in names
    }


def _with_parameters(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The children that have parameters, with their names."""
    return [(name, child) for name, child in module.named_children() if list(child.parameters())]


def with_layer_decay(
    groups: list[dict[str, Any]], model: nn.Module, *, layer_decay: float
) -> list[dict[str, Any]]:
    """Optimizer groups, each split by layers, with ``lr_scale``: 1 in the last layer.

    In every layer before it, the rate is ``layer_decay`` times that of the next. Raises ValueError
    if ``layer_decay`` is not above 0 and at most 1, or the model does not say what its layers are.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"layer_decay {layer_decay}: give a number above 0, up to 1")
    of_name = layer_depths(model)
    depth_of = {parameter: of_name[name] for name, parameter in model.named_parameters()}
    last = max(of_name.values())
    split = []
    for group in groups:
        for depth in sorted({depth_of[parameter] for parameter in group["params"]}):
            inside = [p for p in group["params"] if depth_of[p] == depth]
            split.append({**group, "params": inside, "lr_scale": layer_decay ** (last - depth)})
    return split
