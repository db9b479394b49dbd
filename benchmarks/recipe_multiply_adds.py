"""Multiply-adds of one clip at every shape of every recipe under every schedule, as JSON.

And of the networks that are small enough for a CPU, at the shape that docs/study.md trains them at.

Its output is ``src/vcycle/models/multiply_adds.json``, which ``vcycle plan`` reads so as
not to need torch:

    python benchmarks/recipe_multiply_adds.py > src/vcycle/models/multiply_adds.json
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from vcycle.config.recipes import FIXED_RECIPES, USER_RECIPES, recipe
from vcycle.config.user_recipes import scratch
from vcycle.models import build_model
from vcycle.models.count import multiply_adds
from vcycle.models.entries import find_model
from vcycle.schedule.multigrid import SCHEDULES
from vcycle.schedule.shape import Shape

NUM_CLASSES = 400
SMALL_MODELS, STUDY_SHAPE = ("resnet3d_tiny", "slowfast_tiny"), Shape(8, 96, 96)


def main() -> None:
    """Print the table: model, shape, multiply-adds."""
    shapes: dict[str, set[Shape]] = {}
    configs = [recipe(name) for name in (*FIXED_RECIPES, *USER_RECIPES)]
    for name in SMALL_MODELS:
        config = scratch(model=name)
        configs.append(replace(config, baseline=replace(config.baseline, shape=STUDY_SHAPE)))
    for config in configs:
        for schedule in SCHEDULES:
            multigrid = config.multigrid.with_schedule(schedule)
            visited = replace(config, multigrid=multigrid).plan().shapes
            shapes.setdefault(find_model(config.model.name).name, set()).update(visited)
    table = {}
    for model_name in sorted(shapes):
        with torch.device("meta"):
            model = build_model(model_name, num_classes=NUM_CLASSES)
        table[model_name] = {
            str(shape): multiply_adds(model, shape) for shape in sorted(shapes[model_name])
        }
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
