"""A rehearsal: every shape of the plan passes through the model once, before step 0.

In: the model on its device and the plan. Out: nothing, or one line about the shape that does not
fit. The set of shapes is finite and known, so no run has to find out in hour 30.
"""

from __future__ import annotations

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from vcycle.models import commit_statistics, set_group_size
from vcycle.schedule.plan import Plan


def rehearse(
    model: nn.Module,
    plan: Plan,
    *,
    fabric: Fabric,
    num_classes: int,
    num_parts: int,
) -> None:
    """Run each mini-batch of the plan, divided into ``num_parts``, forward and backward.

    The model's state is as before afterwards. ValueError names the shape that the model cannot
    take or that memory cannot hold.
    """
    before = {name: value.clone() for name, value in model.state_dict().items()}
    set_group_size(model, None)
    for shape, batch_size in plan.mini_batches().items():
        clips = torch.zeros(
            max(1, batch_size // num_parts),
            3,
            shape.frames,
            shape.height,
            shape.width,
            device=fabric.device,
        )
        try:
            scores: Tensor = model(clips)
            fabric.backward(scores.sum())
        except torch.OutOfMemoryError:
            raise ValueError(
                f"shape {shape}: a batch of {len(clips)} clips does not fit into the device's "
                f"memory; use a larger --accumulate, or more processes"
            ) from None
        except (RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"shape {shape}: the model cannot take it ({reason})") from None
        if scores.shape != (len(clips), num_classes):
            raise ValueError(
                f"shape {shape}: the model returns {tuple(scores.shape)} and should return "
                f"{(len(clips), num_classes)}; it has to pool globally"
            )
    model.zero_grad(set_to_none=True)
    commit_statistics(model)  # what the norm layers collected must not reach step 0
    model.load_state_dict(before)
