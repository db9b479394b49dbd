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
from torch import nn

from vcycle.config.run import RunConfig
from vcycle.models import check_model, commit_statistics, memory_format, set_norm_group
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape


def rehearse(
    network: nn.Module,
    model: nn.Module,
    plan: Plan,
    config: RunConfig,
    *,
    fabric: Fabric,
    num_classes: int,
) -> None:
    """Check the model at each shape; then train on each mini-batch, and score one batch of views.

    ``model`` is ``network`` as Fabric runs it; the network's state is as before afterwards. Raises
    ValueError if a layer cannot take a shape, memory cannot hold a batch, a checkpoint cannot keep
    the state, or, with several processes, a parameter is not used.
    """
    before = _as_checkpoints_keep_it(network.state_dict(), config.model.name)
    shape, clips = plan.baseline.shape, 0
    try:
        for shape in plan.shapes:
            clips = 2
            check_model(network, [shape], num_classes=num_classes, num_clips=clips)
        for kind in plan.mini_batches():
            shape, clips = kind.shape, kind.batch_size // (fabric.world_size * config.accumulate)
            set_norm_group(network, kind.norm_group)
            fabric.backward(model(_zeros(clips, shape, network)).sum())
            if fabric.world_size > 1:
                _check_all_learn(network)
        shape, clips = plan.baseline.shape, config.evaluation.batch_size
        network.eval()
        with torch.inference_mode(), fabric.autocast():
            network(_zeros(clips, shape, network))
    except torch.OutOfMemoryError:
        raise ValueError(
            f"shape {shape}: {clips} clips do not fit into the memory of {fabric.device}; use more "
            f"processes, a smaller --baseline.batch_size, or --accumulate 2 with norm groups that "
            f"divide its micro-batches"
        ) from None
    network.train()
    network.zero_grad(set_to_none=True)
    commit_statistics(network)  # what the norm layers collected must not reach step 0
    network.load_state_dict(before)


def _check_all_learn(network: nn.Module) -> None:
    """Processes wait for each other's gradient of every parameter, so each must have one."""
    for name, parameter in network.named_parameters():
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


def _zeros(clips: int, shape: Shape, network: nn.Module) -> torch.Tensor:
    size = (clips, 3, shape.frames, shape.height, shape.width)
    device = next(network.parameters()).device
    return torch.zeros(size, device=device).contiguous(memory_format=memory_format(network))
