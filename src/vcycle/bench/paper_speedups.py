"""The wall-clock speed-ups that the paper prints, to stand beside predicted ones.

In: a configuration. Out: the paper's figure for its recipe and epoch factor, if it prints one.
"""

from __future__ import annotations

from dataclasses import replace

from vcycle.config.recipes import recipe
from vcycle.config.run import RunConfig

PAPER_SPEEDUPS: dict[str, dict[float, float]] = {
    "k400-slowfast-r50": {1.5: 4.5},  # table 2
    "k400-slowfast-r50-16f": {1.5: 4.0},
    "k400-slowfast-r50-64f": {1.5: 5.5},
    "k400-slowfast-r50-320px": {1.5: 6.5},
    "k400-slowfast-r50-pretrained": {1.5: 4.5},
    "k400-i3d-r50": {1.5: 3.9},  # table 3
    "k400-i3d-nl-r50": {1.5: 3.3},
    "k400-i3d-r50-1gpu": {1.5: 3.35},  # table 4: 6.7 days against 2.0
    "ssv2-slowfast-r50": {1.0: 8.3, 1.5: 5.6, 2.0: 4.2},  # table 5
    "charades-slowfast-r50": {1.0: 8.6, 1.5: 5.7, 2.0: 4.3},  # table 6
}
"""By recipe and epoch factor."""


def paper_speedup(config: RunConfig) -> float | None:
    """What the paper measured for a recipe's own schedule and network; None for another.

    It is at the recipe's own shape and batch, on the paper's GPUs.
    """
    figures = PAPER_SPEEDUPS.get(config.recipe)
    if figures is None:
        return None
    asked, published = config.multigrid, recipe(config.recipe)
    own = replace(
        published.multigrid,
        epoch_factor=asked.epoch_factor,
        norm_group=asked.norm_group,
        rule=asked.rule,
    )
    is_own = asked == own and config.model.network == published.model.network
    return figures.get(asked.epoch_factor) if is_own else None
