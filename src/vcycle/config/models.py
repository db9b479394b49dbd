"""What a clip costs each model of the recipes, without torch.

In: a model's name. Out: multiply-adds of one forward pass per shape, counted on the models
themselves by ``benchmarks/recipe_multiply_adds.py`` with 400 classes.
"""

from __future__ import annotations

import json
from importlib.resources import files

from vcycle.config.run import Model
from vcycle.schedule import cost
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape


def clip_multiply_adds(model: str) -> dict[Shape, int]:
    """Multiply-adds of one clip at the shapes that were counted; empty for other models."""
    table = json.loads(files("vcycle.config").joinpath("multiply_adds.json").read_text())
    return {Shape.parse(shape): count for shape, count in table.get(model, {}).items()}


def compute(plan: Plan, model: Model) -> tuple[cost.Cost, str]:
    """What all clips of a plan cost, and the unit: ``multiply-adds`` where they were counted.

    Else, and where the model has options that may change them, it is ``pixels``, T x H x W, in
    proportion to which multiply-adds grow up to padding and attention (paper, footnote 3).
    """
    counted = clip_multiply_adds(model.name) if model.options.keys() <= {"dropout"} else {}
    if {plan.baseline.shape, *plan.shapes} <= counted.keys():
        return cost.clip_cost(plan, lambda shape: counted[shape]), "multiply-adds"
    return cost.pixels(plan), "pixels"
