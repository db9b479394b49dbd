"""A rehearsal: every mini-batch of the plan passes through the model once, before step 0.

In: the model on its device and the plan. Out: nothing, or one line about the shape that does not
fit. The set of shapes is finite and known, so no run has to find out in hour 30.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule

from vcycle.config.run import RunConfig
from vcycle.models import check_model, commit_statistics, memory_format, set_norm_group
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape


def rehearse(
    model: _FabricModule, plan: Plan, config: RunConfig, *, fabric: Fabric, num_classes: int
) -> None:
    """Check the model at each shape; then train on each mini-batch, and score one batch of views.

    The model's state is as before afterwards. ValueError names the shape, and the layer that
    cannot take it, or the batch that memory cannot hold; or what of the state no checkpoint keeps;
    or, with several processes, a parameter that is not used.
    """
    before = _as_checkpoints_keep_it(model.state_dict(), config.model.name)
    shape, clips = plan.baseline.shape, 0
    try:
        for shape in plan.shapes:
            clips = 2
            check_model(model.module, [shape], num_classes=num_classes, num_clips=clips)
        for kind in plan.mini_batches():
            shape, clips = kind.shape, kind.batch_size // (fabric.world_size * config.accumulate)
            set_norm_group(model, kind.norm_group)
            fabric.backward(model(_zeros(clips, shape, model)).sum())
            if fabric.world_size > 1:
                _check_all_learn(model)
        shape, clips = plan.baseline.shape, config.evaluation.batch_size
        model.eval()
        with torch.inference_mode(), fabric.autocast():
            model.module(_zeros(clips, shape, model))
    except torch.OutOfMemoryError:
        raise ValueError(
            f"shape {shape}: {clips} clips do not fit into the memory of {fabric.device}; use more "
            f"processes, a smaller --baseline.batch_size, or --accumulate 2 with norm groups that "
            f"divide its micro-batches"
        ) from None
    model.train()
    model.zero_grad(set_to_none=True)
    commit_statistics(model)  # what the norm layers collected must not reach step 0
    model.load_state_dict(before)


def _check_all_learn(model: _FabricModule) -> None:
    """Processes wait for each other's gradient of every parameter, so each must have one."""
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ValueError(
                f"model: parameter {name!r} gets no gradient, which several processes would wait "
                f"for; take it out of the model, or freeze it (requires_grad=False)"
            )


def _as_checkpoints_keep_it(state: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of a model's state, written and read as checkpoints are."""
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        copy: dict[str, Any] = torch.load(file, weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError) as error:
        raise ValueError(
            f"model {name}: a checkpoint of its state could not be read again; let get_extra_state "
            f"return tensors, numbers, strings, and lists and dictionaries of them, and give lazy "
            f"layers their sizes"
        ) from error
    return copy


def _zeros(clips: int, shape: Shape, model: _FabricModule) -> torch.Tensor:
    size = (clips, 3, shape.frames, shape.height, shape.width)
    device = next(model.parameters()).device
    return torch.zeros(size, device=device).contiguous(memory_format=memory_format(model))
