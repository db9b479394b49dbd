"""A rehearsal: every shape of the plan passes through the model once, before step 0.

In: the model on its device and the plan. Out: nothing, or one line about the shape that does not
fit. The set of shapes is finite and known, so no run has to find out in hour 30.
"""

from __future__ import annotations

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule

from vcycle.models import check_model, commit_statistics, set_group_size
from vcycle.schedule.plan import Plan


def rehearse(
    model: _FabricModule, plan: Plan, *, fabric: Fabric, num_classes: int, num_parts: int
) -> None:
    """Check the model at each shape, then run each mini-batch, divided into ``num_parts``.

    The model's state is as before afterwards. ValueError names the shape, and the layer that
    cannot take it, or the batch that memory cannot hold.
    """
    check_model(model.module, plan.mini_batches(), num_classes=num_classes)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    set_group_size(model, None)
    for shape, batch_size in plan.mini_batches().items():
        size = (batch_size // num_parts, 3, shape.frames, shape.height, shape.width)
        try:
            fabric.backward(model(torch.zeros(size, device=fabric.device)).sum())
        except torch.OutOfMemoryError:
            raise ValueError(
                f"shape {shape}: a batch of {size[0]} clips does not fit into the memory of "
                f"{fabric.device}; use a larger --accumulate, or more processes"
            ) from None
    model.zero_grad(set_to_none=True)
    commit_statistics(model)  # what the norm layers collected must not reach step 0
    model.load_state_dict(before)
