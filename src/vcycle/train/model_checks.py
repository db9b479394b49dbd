"""What a model needs for a plan's steps, whoever trains it.

In: a model, and a step or its parts. Out: one line of what is not as it must be.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from vcycle.data.batch import Batch
from vcycle.data.request import StepPart
from vcycle.models import (
    SampleDropout,
    SubBatchNorm3d,
    has_deferred_statistics,
)
from vcycle.models.dropout import BY_SAMPLE
from vcycle.models.frozen import has_norm_groups, training_norms
from vcycle.schedule.norm_groups import check_norm_group


def check_batch(batch: object) -> None:
    """Raise TypeError unless it is a ``Batch``, as ``vcycle.collate`` makes them."""
    if not isinstance(batch, Batch):
        raise TypeError(
            f"batch {type(batch).__name__}: give the loader's batch as it is; make the loader "
            f"DataLoader(dataset, batch_sampler=vcycle.PlanSampler(...), collate_fn=vcycle.collate)"
        )


def check_batch_norms(model: nn.Module, norm_group: int | None) -> None:
    """Raise ValueError if batch norms of ``model`` would ignore norm groups."""
    if norm_group is None:
        return
    others = [
        norm
        for norm in training_norms(model)
        if isinstance(norm, (nn.BatchNorm3d, nn.SyncBatchNorm))
        and not isinstance(norm, SubBatchNorm3d)
    ]
    plain = sum(type(norm) is nn.BatchNorm3d for norm in others)
    if plain:
        raise ValueError(
            f"model: {plain} nn.BatchNorm3d take statistics from whole batches, not from groups of "
            f"{norm_group} clips; call vcycle.convert_batch_norm(model) first, or plan with "
            f"Multigrid(norm_group=None)"
        )
    if others:
        raise ValueError(
            f"model: {len(others)} {type(others[0]).__name__} take statistics from whole batches, "
            f"not from groups of {norm_group} clips, and vcycle.convert_batch_norm leaves them as "
            f"they are; leave out convert_sync_batchnorm, or build the model with nn.BatchNorm3d, "
            f"whose groups span processes once it is converted, or plan with "
            f"Multigrid(norm_group=None)"
        )


def check_parts(model: nn.Module, part: StepPart) -> None:
    """Raise ValueError if layers would not see a step's parts as one batch.

    Warns of attention that drops weights, for nothing here can draw them by clip, of transformers
    whose tokens come first, and of batch norms without groups.
    """
    if part.num_parts == 1:
        return
    partial = None
    if part.step.norm_group is None:
        partial = partial_norms(model, micro_batches=part.micro_batches)
    if partial is not None:
        warnings.warn(
            f"{partial}; call vcycle.convert_batch_norm(model), and plan with "
            f"Multigrid(norm_group=8)",
            stacklevel=3,
        )
    takes_statistics = has_norm_groups(model)
    for clips, norm_group in part.batches if takes_statistics else ():
        if norm_group is not None:
            at_once = clips // part.micro_batches
            try:  # all of the plan's, of which the smallest may come last
                check_norm_group(norm_group, batch_clips=at_once, num_parts=part.world_size)
            except ValueError as error:
                raise ValueError(
                    f"batch of {clips} clips in {part.num_parts} parts: {error}; or give the "
                    f"plan's Multigrid a smaller norm_group, or fewer micro_batches"
                ) from None
    is_grouped = takes_statistics and part.step.norm_group is not None
    if is_grouped and not has_deferred_statistics(model):
        raise ValueError(
            f"model: its running statistics would be those of one of {part.num_parts} parts of a "
            f"batch; call vcycle.defer_statistics(model, optimizer) once, before the first step"
        )
    plain = _num_plain_dropout(model)
    if plain:
        raise ValueError(
            f"model: {plain} nn.Dropout draw their masks by process and micro-batch, so that the "
            f"{part.num_parts} parts of a batch change the result; call "
            f"vcycle.convert_dropout(model) first"
        )
    attention = _num_attention_dropout(model)
    if attention:
        warnings.warn(
            f"model: {attention} nn.MultiheadAttention draw their dropout by process and "
            f"micro-batch, so that the {part.num_parts} parts of a batch change the result; give "
            f"them dropout=0 if that matters",
            stacklevel=3,
        )
    tokens_first = _num_tokens_first(model)
    if tokens_first:
        warnings.warn(
            f"model: {tokens_first} transformer layers take tokens first, so that their dropout is "
            f"not by clip and the {part.num_parts} parts of a batch change the result; give them "
            f"batch_first=True, and clips in the first dimension",
            stacklevel=3,
        )


def _num_plain_dropout(model: nn.Module) -> int:
    """The layers that ``convert_dropout`` would replace and that drop something as they are."""
    layers = (module for module in model.modules() if type(module) in BY_SAMPLE)
    return sum(bool(layer.training and layer.p) for layer in layers)


def _num_attention_dropout(model: nn.Module) -> int:
    """The ``nn.MultiheadAttention`` that drop weights, which ``convert_dropout`` leaves alone."""
    layers = (each for each in model.modules() if isinstance(each, nn.MultiheadAttention))
    return sum(bool(layer.training and layer.dropout) for layer in layers)


def _num_tokens_first(model: nn.Module) -> int:
    """The transformer layers whose dropout is not by clip, as their input has tokens first."""
    transformers = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    layers = [each for each in model.modules() if isinstance(each, transformers)]
    inside = [
        layer.modules()
        for layer in layers
        if not getattr(layer.self_attn, "batch_first", True)  # it may be another's attention
    ]
    drops = ([m for m in each if isinstance(m, SampleDropout)] for each in inside)
    return sum(any(layer.training and layer.p for layer in each) for each in drops)


def partial_norms(model: nn.Module, *, micro_batches: int) -> str | None:
    """What to say if batch norms take statistics from each part of a batch by itself, if they do.

    A batch has several parts, in ``micro_batches`` of as many processes, and no norm groups.
    """
    kinds = (nn.BatchNorm3d, nn.SyncBatchNorm) if micro_batches > 1 else nn.BatchNorm3d
    number = sum(isinstance(norm, kinds) for norm in training_norms(model))
    if not number:
        return None
    return (
        f"model: {number} batch norms take statistics from a part of a batch at a time, so that "
        f"the number of parts changes the result"
    )


def warn_of_evaluation(model: nn.Module) -> None:
    """Warn if no layer that trains is in training mode, as after a validation."""
    training = any(
        layer.training and any(each.requires_grad for each in layer.parameters(recurse=False))
        for layer in model.modules()
    )
    if not training and any(each.requires_grad for each in model.parameters()):
        warnings.warn(
            "model: it is in evaluation mode, in which dropout is off and norm statistics stay as "
            "they are; call model.train() after a validation",
            stacklevel=3,
        )


def compare_processes(model: nn.Module, optimizer: Optimizer, part: StepPart) -> None:
    """Raise ValueError if processes take their parts of different runs; all of them call it.

    Warns if they train models of their own, as they do without DDP. Those are not compared if a
    process holds a part of the parameters, or copies of its own.
    """
    is_parallel = dist.is_available() and dist.is_initialized() and part.world_size > 1
    if not is_parallel or dist.get_world_size() != part.world_size:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    device = parameters[0].device
    if device.type not in dist.get_backend_config():  # parameters on the CPU beside NCCL alone
        return
    if _differ(torch.tensor([part.seed % 2**63, part.run], device=device)):
        raise ValueError(
            f"batch of {part}: the seeds, plans or numbers of videos of the {part.world_size} "
            f"processes differ; give PlanSampler the same in all: it takes each rank's part by "
            f"itself"
        )
    of_model = set(map(id, model.parameters()))
    if any(id(p) not in of_model or _is_shard(p) for p in parameters):
        return
    if _differ(torch.stack([_sum_of_bits(p).to(device) for p in parameters])):
        warnings.warn(
            f"model: its parameters differ between the {part.world_size} processes, as if each "
            f"trained alone; wrap it in DistributedDataParallel, or average what it leaves out",
            stacklevel=3,
        )


def _differ(numbers: Tensor) -> bool:
    """Whether whole numbers are not the same in all processes."""
    ends = torch.stack([numbers, -numbers])
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    return not ends[0].equal(-ends[1])


def _is_shard(parameter: Tensor) -> bool:
    """Whether a process holds a part of a parameter, as with FSDP and DeepSpeed."""
    is_marked = hasattr(parameter, "_fsdp_flattened") or hasattr(parameter, "ds_id")
    return is_marked or type(parameter) not in (nn.Parameter, Tensor)


def _sum_of_bits(parameter: Tensor) -> Tensor:
    """The same for the same values, whatever the order in which a device adds them."""
    plain = torch.view_as_real(parameter) if parameter.is_complex() else parameter
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]
    return plain.detach().contiguous().view(kind).sum(dtype=torch.int64)
