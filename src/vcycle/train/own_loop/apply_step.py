"""One call before each forward pass: the batch's step sets rate, norm group, tokens and seeds.

In: a batch, and the model and optimizer of any loop or trainer. The batch leads, so nothing can
get out of step; a batch that is not the next one of the plan is refused.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from vcycle.data.batch import Batch
from vcycle.data.request import StepPart
from vcycle.models import set_dropout_seeds, set_norm_group, set_token_share
from vcycle.models.wrapped import inner_optimizer
from vcycle.schedule.plan import Plan, Step
from vcycle.train.model_checks import (
    check_batch,
    check_batch_norms,
    check_parts,
    compare_processes,
    warn_of_evaluation,
)
from vcycle.train.optimizer_watch import watch
from vcycle.train.own_loop.place import (
    PLACE,
    check_commits,
    check_order,
    commit_skipped,
    count_step,
    follow,
    is_followed,
    keep_place,
    place_of,
    steps_done,
)
from vcycle.train.rates import rate_factors, set_rates, warn_of_rate

_COMPARED_AT = 5
"""Which batch is the one at which runs and parameters of all processes are compared, once."""


def apply_step(batch: Batch, *, model: nn.Module, optimizer: Any) -> Step:
    """Set rate, norm group, token share and seeds of the batch's step; for each (micro-)batch.

    Every parameter group gets the plan's rate times its own factor: its initial rate over the
    baseline's, or over the largest, with a warning, if no group began there. The optimizer may be
    Lightning's or Accelerate's wrapper of one, the model DDP's. The place in the plan is kept in
    the optimizer's state, so a resumed run goes on checking. Returns the step. The first call warns
    of an optimizer that has stepped, has no state in mid-plan or has another scheduler, and of
    other videos than the plan's; each call of a model that is in evaluation mode. The fifth step's
    call compares all processes, which have to call it together, and warns if their parameters
    differ.

    Raises ValueError if the batch is not the one that follows the last: of another plan, drawn from
    another number of videos, left out or repeated, split by a trainer; if processes have different
    seeds, plans or numbers of videos; if there are gradients
    before the first; if the optimizer stepped
    between two micro-batches of a step, twice between two steps, or not at all though it has
    gradients and they are finite, or begins in mid-plan with a state and without the rates that it
    began with; if the model's batch norms are not set up for the plan, or what
    they collected was not applied; if its dropout is not for several parts; or if it cannot drop
    tokens and the plan does. Raises TypeError if ``batch`` is no ``Batch``: the loader has another
    ``collate_fn``.
    """
    inner = inner_optimizer(optimizer)
    check_batch(batch)
    step, part = batch.step, batch.part
    assert part is not None  # or there were no step
    if len(batch) != part.num_clips:
        raise ValueError(
            f"batch of {len(batch)} clips: {part} has {part.num_clips} for this process; keep "
            f"the trainer from splitting batches"
        )
    if not is_followed(inner):
        _warn_of_scheduler(inner)
        follow(inner)
    if check_order(part, inner):
        commit_skipped(model, inner)
    base_rate = part.baseline.learning_rate.base
    if place_of(inner) is None:
        _check_begins(inner, step)
        warn_of_rate(inner, base_rate=base_rate)
        _warn_of_videos(part)
    if part.micro_batch == 0:
        check_batch_norms(model, step.norm_group)
        check_parts(model, part)
        check_commits(model, inner)
        if count_step(inner) == _COMPARED_AT:  # whatever the scalers of processes skip
            compare_processes(model, inner, part)
        warn_of_evaluation(model)
        set_rates(inner, step.learning_rate, rate_factors(inner, base_rate=base_rate))
        set_norm_group(model, step.norm_group)
        set_token_share(model, step.token_share)
    set_dropout_seeds(model, part.dropout_seeds)
    keep_place(part, inner)
    return step


def check_finished(plan: Plan, optimizer: Any) -> None:
    """Raise ValueError unless the optimizer has taken the plan's last step: after training.

    A trainer that counts batches by a length of its own ends early without a word, and the steps
    that it leaves out are those of the full shape. ``optimizer`` as in ``apply_step``; of a loop
    with ``PlanLR`` alone, that.
    """
    if isinstance(plan_of_scheduler := getattr(optimizer, "plan", None), Plan):
        if plan_of_scheduler != plan:
            raise ValueError("scheduler: it is of another plan; give check_finished its own")
        done = optimizer.last_epoch
    else:
        done = steps_done(inner_optimizer(optimizer))
    if done < len(plan):
        raise ValueError(
            f"training: it ended after {done} of the plan's {len(plan)} steps; let the trainer "
            f"take every batch of the loader (Lightning counts those before a resume, too: give it "
            f"torchdata's StatefulDataLoader, without first_step, as many micro-batches as "
            f"before, and no checkpoint that it wrote when it stopped early)"
        )


def _check_begins(optimizer: Optimizer, step: Step) -> None:
    """Raise ValueError if this first call comes after ``backward``; warn if after ``step``.

    Later in the plan, raise it if the optimizer has a state, but not the rates that its groups
    began at; warn if it has no state.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(p.grad is not None and bool(p.grad.any()) for p in parameters):
        raise ValueError(
            "optimizer: its parameters have gradients before the first step of the plan; call "
            "apply_step before the forward pass (gradients of something else: "
            "optimizer.zero_grad() before)"
        )
    # Steps on zeros, which build an optimizer's state before one is loaded, leave it at zero.
    values = [v for state in optimizer.state.values() for v in state.values()]
    if not any(isinstance(v, Tensor) and v.ndim and bool(v.any()) for v in values):
        if step.index:
            warnings.warn(
                f"optimizer: it has no state at step {step.index} of the plan; load the "
                f"checkpoint's (right if it begins here, or never has one)",
                stacklevel=3,
            )
    elif step.index == 0:
        warnings.warn(
            "optimizer: it has a state before the first step of the plan; if it has stepped, call "
            "apply_step before each forward pass (right if it was built with one, or had it from "
            "an earlier run)",
            stacklevel=3,
        )
    elif not all("initial_lr" in group for group in optimizer.param_groups):
        raise ValueError(
            f"optimizer: at step {step.index} of the plan it has a state, but not the rates that "
            f"it began with; set group['initial_lr'] to those in each group (with "
            f"torch.distributed.checkpoint before get_state_dict, and "
            f"param_groups[0]['{PLACE}'] = [0] * 7)"
        )


def _warn_of_videos(part: StepPart) -> None:
    planned = part.baseline.num_videos
    if part.num_videos not in (0, planned):
        warnings.warn(
            f"num_videos {part.num_videos} of PlanSampler: the plan counts its epochs over "
            f"{planned}; give its Baseline num_videos={part.num_videos}, too",
            stacklevel=3,
        )


def _warn_of_scheduler(optimizer: Optimizer) -> None:
    """Warn once if a scheduler of torch's, other than PlanLR, sets rates that are not used."""
    if hasattr(optimizer.step, "_wrapped_by_lr_sched") and not watch(optimizer).has_plan_lr:
        warnings.warn(
            "optimizer: it has a scheduler, whose rates are not used: apply_step sets the plan's; "
            "leave it out, or change group['lr'] after apply_step",
            stacklevel=3,
        )
