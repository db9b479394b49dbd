"""One call before each forward pass: the batch's step sets rate, norm group, tokens and seeds.

In: a batch, and the model and optimizer of any loop or trainer. The batch leads, so nothing can
get out of step; a batch that is not the next one of the plan is refused.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from vcycle.data.batch import Batch
from vcycle.data.request import StepPart
from vcycle.models import (
    commit_statistics,
    num_commits,
    set_dropout_seeds,
    set_norm_group,
    set_token_share,
)
from vcycle.models.wrapped import inner_optimizer
from vcycle.schedule.plan import Plan, Step
from vcycle.train.optimizer_watch import step_was_skipped, watch
from vcycle.train.own_loop.model_checks import (
    check_batch,
    check_batch_norms,
    check_parts,
    warn_of_drift,
    warn_of_evaluation,
)
from vcycle.train.rates import rate_factors, set_rates, warn_of_rate

_MOST_UNCOMMITTED = 10
"""Steps of an optimizer before statistics that nobody applied are taken for forgotten."""
_COMPARED_AT = 5
"""Which batch is the one at which the parameters of all processes are compared, once."""
_PLACE = "plan_place"
"""In the first parameter group, so that a checkpoint of the optimizer has it.

Step, micro-batch, micro-batches, the step's first and end sample, seed and number of the run; and
in a checkpoint whether the optimizer had taken the step.
"""


@dataclass
class _Pace:
    """How often an optimizer had stepped, all steps and those that updated, when a batch last came.

    ``batches``: of steps, that came. ``first_commits`` and ``first_updates``: how often a model's
    collected statistics had been applied, and the optimizer had updated, when a batch first came.
    """

    steps: int | None = None
    updates: int = 0
    first_commits: int | None = None
    first_updates: int = 0
    has_commits: bool = False
    batches: int = 0


_paces: WeakKeyDictionary[Optimizer, _Pace] = WeakKeyDictionary()


def apply_step(batch: Batch, *, model: nn.Module, optimizer: Any) -> Step:
    """Set rate, norm group, token share and seeds of the batch's step; for each (micro-)batch.

    Every parameter group gets the plan's rate times its own factor: its initial rate over the
    baseline's, or over the largest, with a warning, if no group began there. The optimizer may be
    Lightning's or Accelerate's wrapper of one, the model DDP's. The place in the plan is kept in
    the optimizer's state, so a resumed run goes on checking. Returns the step. The first call warns
    of an optimizer that has stepped or has another scheduler, and of other videos than the plan's;
    each call of a model that is in evaluation mode. The fifth step's call compares the parameters
    of all processes, which have to call it together, and warns if they differ.

    Raises ValueError if the batch is not the one that follows the last: of another plan, drawn from
    another number of videos, left out or repeated, split by a trainer; if there are gradients
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
    if inner not in _paces:
        _warn_of_scheduler(inner)
        inner.register_state_dict_post_hook(_say_whether_taken)
    if _check_order(part, inner):
        _commit_skipped(model, inner)
    base_rate = part.baseline.learning_rate.base
    if _place(inner) is None:
        _check_begins(inner, step)
        warn_of_rate(inner, base_rate=base_rate)
        _warn_of_videos(part)
    if part.micro_batch == 0:
        check_batch_norms(model, step.norm_group)
        check_parts(model, part)
        _check_commits(model, inner)
        _paces[inner].batches += 1  # as many in each process, whatever their scalers skip
        if _paces[inner].batches == _COMPARED_AT:
            warn_of_drift(model, inner, part)
        warn_of_evaluation(model)
        set_rates(inner, step.learning_rate, rate_factors(inner, base_rate=base_rate))
        set_norm_group(model, step.norm_group)
        set_token_share(model, step.token_share)
    set_dropout_seeds(model, part.dropout_seeds)
    end_sample = step.first_sample + step.batch_size
    inner.param_groups[0][_PLACE] = [
        *(step.index, part.micro_batch, part.micro_batches, step.first_sample, end_sample),
        *(part.seed, part.run),
    ]
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
        done = _steps_done(inner_optimizer(optimizer))
    if done < len(plan):
        raise ValueError(
            f"training: it ended after {done} of the plan's {len(plan)} steps; let the trainer "
            f"take every batch of the loader (Lightning counts those before a resume, too: give it "
            f"torchdata's StatefulDataLoader, without first_step, as many micro-batches as "
            f"before, and no checkpoint that it wrote when it stopped early)"
        )


def _steps_done(optimizer: Optimizer) -> int:
    """Steps of the plan that the optimizer has taken."""
    place = _place(optimizer)
    if place is None:
        raise ValueError(
            "optimizer: it has no place in a plan; give that of the apply_step calls, or the PlanLR"
        )
    index, micro_batch, micro_batches, *_ = place
    pace = _paces.get(optimizer)
    if pace is None:
        waits = place[7:] == [0]
    else:
        waits = pace.steps == watch(optimizer).num_steps and not step_was_skipped(optimizer)
    if micro_batch + 1 < micro_batches or waits:
        index -= 1  # of that step there was a batch
    return int(index) + 1


def _place(optimizer: Optimizer) -> list[int] | None:
    """The last micro-batch that an optimizer saw; None before the first.

    One of no micro-batches stands for none: a checkpoint may be loaded into it.
    """
    place: list[int] | None = optimizer.param_groups[0].get(_PLACE)
    return place if place is not None and place[2] else None


def _say_whether_taken(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Add to the place in a checkpoint whether the optimizer has stepped since the last batch."""
    pace, group = _paces.get(optimizer), state["param_groups"][0]
    if pace is not None and pace.steps is not None and _PLACE in group:
        group[_PLACE] = [*group[_PLACE][:7], int(pace.steps != watch(optimizer).num_steps)]


def _check_begins(optimizer: Optimizer, step: Step) -> None:
    """Raise ValueError if this first call comes after ``backward``; warn if after ``step``.

    Or, later in the plan, if the optimizer has a state, but not the rates that its groups began at.
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
        return
    if step.index == 0:
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
            f"param_groups[0]['{_PLACE}'] = [0] * 7)"
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


def _check_order(part: StepPart, optimizer: Optimizer) -> bool:
    """Raise ValueError unless this micro-batch follows the last, and the optimizer kept pace.

    Returns whether a gradient scaler skipped the step before.
    """
    step, counter = part.step, watch(optimizer)
    pace = _paces.setdefault(optimizer, _Pace())
    place = _place(optimizer)
    if place is not None:
        last, micro_batch, micro_batches, first_sample, end_sample, seed, run, *taken = place
        if seed != part.seed:
            raise ValueError(
                f"batch of seed {part.seed}: the run's is {seed}; give PlanSampler that one"
            )
        if run != part.run:
            raise ValueError(
                f"batch of {part}: it is of another plan, or drawn from another number of videos, "
                f"than the run's; give PlanSampler those that the run began with (for another run: "
                f"a new optimizer)"
            )
        if micro_batch + 1 == micro_batches:
            due = (last + 1, 0, end_sample)
            if pace.steps is None and taken == [0]:
                if step.index == last:
                    due = (last, 0, first_sample)
                elif step.index == last + 1:
                    _warn_of_a_lost_step(last)
        elif pace.steps is None:  # a new optimizer, without the gradients until there
            due = (last, 0, first_sample)
        else:
            due = (last, micro_batch + 1, first_sample)
        if (step.index, part.micro_batch, step.first_sample) != due:
            raise ValueError(
                f"batch of {part}, from clip {step.first_sample}: step {due[0]}, micro-batch "
                f"{due[1]}, from clip {due[2]} is due; train on every batch of one plan once and "
                f"in order, and let no trainer shuffle, shard or restart its loader (to resume: "
                f"PlanSampler(..., first_step={due[0]}), in Lightning torchdata's "
                f"StatefulDataLoader without it; for another plan: a new optimizer)"
            )
    elif part.micro_batch:
        raise ValueError(f"batch of {part}: begin at the first micro-batch of a step")
    has_stepped = pace.steps != counter.num_steps
    times = 0 if pace.steps is None else counter.num_updates - pace.updates
    if part.micro_batch and pace.steps is not None and has_stepped:
        raise ValueError(
            f"batch of {part}: the optimizer has stepped since micro-batch {part.micro_batch - 1}; "
            f"let it step after {part.micro_batches} micro-batches (if batch.part.is_last), as "
            f"PlanSampler(micro_batches={part.micro_batches}) draws them"
        )
    if times > 1:
        raise ValueError(
            f"batch of {part}: the optimizer has stepped {times} times since the last; let it step "
            f"once for a step of the plan"
        )
    was_skipped = not part.micro_batch and not has_stepped
    if was_skipped and not step_was_skipped(optimizer):
        raise ValueError(
            f"batch of {part}: the optimizer has not stepped since the last step's; let it step "
            f"after {part.micro_batches} batches, or give PlanSampler the micro_batches that it "
            f"accumulates"
        )
    pace.steps, pace.updates = counter.num_steps, counter.num_updates
    return was_skipped


def _warn_of_a_lost_step(index: int) -> None:
    warnings.warn(
        f"optimizer: its state was saved between apply_step and optimizer.step(), so that step "
        f"{index} is left out; save after optimizer.step(), or begin at PlanSampler(..., "
        f"first_step={index}) (right if a gradient scaler skipped that step)",
        stacklevel=4,
    )


def _check_commits(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise ValueError if the optimizer has often stepped, and collected statistics never moved.

    Not at once: another optimizer may train the norms, and step more rarely.
    """
    pace, updates = _paces[optimizer], watch(optimizer).num_updates
    if pace.has_commits:
        return
    commits = num_commits(model)
    if commits is None:
        return
    if pace.first_commits is None:
        pace.first_commits, pace.first_updates = commits, updates
    pace.has_commits = commits != pace.first_commits
    steps = updates - pace.first_updates
    if not pace.has_commits and steps >= _MOST_UNCOMMITTED:
        raise ValueError(
            f"model: the running statistics that it collected in {steps} steps were not applied; "
            f"call vcycle.defer_statistics(model, optimizer) with the optimizer that trains it, or "
            f"vcycle.commit_statistics(model) after each of its steps"
        )


def _commit_skipped(model: nn.Module, optimizer: Optimizer) -> None:
    """Apply what a skipped step collected, as the optimizer would have; it proves no set-up."""
    before = num_commits(model)
    commit_statistics(model)
    pace = _paces[optimizer]
    if before is not None and pace.first_commits is not None:
        pace.first_commits += (num_commits(model) or 0) - before
