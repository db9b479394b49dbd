"""What a run computes: multiply-adds of its model if they were counted, else pixels.

In: a plan and its model. Out: a cost and its unit; no torch.
"""

from __future__ import annotations

from vcycle.config.run import Model
from vcycle.schedule import cost
from vcycle.schedule.plan import Plan


def compute(plan: Plan, model: Model) -> tuple[cost.Cost, str]:
    """What all clips of a plan cost, and the unit: ``multiply-adds`` if they were counted.

    Else, and if the model has options that may change them, it is ``pixels``, T x H x W, in
    proportion to which multiply-adds grow up to padding and attention (paper, footnote 3); of
    clips that keep a share of their tokens, that share.
    """
    entry, clips = model.entry, plan.clip_kinds
    counted = {clip: entry and entry.clip_multiply_adds(*clip, model.options) for clip in clips}
    if all(count is not None for count in counted.values()):
        return cost.clip_cost(plan, lambda *clip: counted[clip] or 0), "multiply-adds"
    return cost.pixels(plan), "pixels"
