"""The place of an optimizer in a plan: the last batch that it saw, and if it has stepped since.

In: the batches of a run, as they come, and the optimizer that takes them. Out: a place that its
checkpoints keep, or a ValueError for a batch that is not the next one, or an optimizer that did
not keep pace.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from vcycle.data.request import StepPart
from vcycle.models import commit_statistics, num_commits
from vcycle.train.optimizer_watch import step_was_skipped, watch

_MOST_UNCOMMITTED = 10
"""Steps of an optimizer before statistics that nobody applied are taken for forgotten."""
PLACE = "plan_place"
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


def is_followed(optimizer: Optimizer) -> bool:
    """Whether this process has seen a batch for an optimizer."""
    return optimizer in _paces


def follow(optimizer: Optimizer) -> None:
    """Count an optimizer's steps by its batches, and have its checkpoints keep its place."""
    _paces[optimizer] = _Pace()
    optimizer.register_state_dict_post_hook(_say_whether_taken)


def keep_place(part: StepPart, optimizer: Optimizer) -> None:
    """This micro-batch is the last that the optimizer saw."""
    step = part.step
    end_sample = step.first_sample + step.batch_size
    optimizer.param_groups[0][PLACE] = [
        *(step.index, part.micro_batch, part.micro_batches, step.first_sample, end_sample),
        *(part.seed, part.run),
    ]


def count_step(optimizer: Optimizer) -> int:
    """Steps whose first batch came, with this one: as many in each process."""
    _paces[optimizer].batches += 1
    return _paces[optimizer].batches


def steps_done(optimizer: Optimizer) -> int:
    """Steps of the plan that the optimizer has taken."""
    place = place_of(optimizer)
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


def place_of(optimizer: Optimizer) -> list[int] | None:
    """The last micro-batch that an optimizer saw; None before the first.

    One of no micro-batches stands for none: a checkpoint may be loaded into it.
    """
    place: list[int] | None = optimizer.param_groups[0].get(PLACE)
    return place if place is not None and place[2] else None


def _say_whether_taken(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Add to the place in a checkpoint whether the optimizer has stepped since the last batch."""
    pace, group = _paces.get(optimizer), state["param_groups"][0]
    if pace is not None and pace.steps is not None and PLACE in group:
        group[PLACE] = [*group[PLACE][:7], int(pace.steps != watch(optimizer).num_steps)]


def check_order(part: StepPart, optimizer: Optimizer) -> bool:
    """Raise ValueError unless this micro-batch follows the last, and the optimizer kept pace.

    Returns whether a gradient scaler skipped the step before.
    """
    step, counter = part.step, watch(optimizer)
    pace = _paces[optimizer]
    place = place_of(optimizer)
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
        if step.index == 0 and last > 0:
            raise ValueError(
                f"batch of step 0: the loader was begun anew, and step {due[0]} is due; a plan is "
                f"one epoch, so iterate it once (max_epochs=1); after a break go on with its "
                f"iterator or with PlanSampler(..., first_step={due[0]}), in Lightning torchdata's "
                f"StatefulDataLoader without it (for another run: a new optimizer)"
            )
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


def check_commits(model: nn.Module, optimizer: Optimizer) -> None:
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


def commit_skipped(model: nn.Module, optimizer: Optimizer) -> None:
    """Apply what a skipped step collected, as the optimizer would have; it proves no set-up."""
    before = num_commits(model)
    commit_statistics(model)
    pace = _paces[optimizer]
    if before is not None and pace.first_commits is not None:
        pace.first_commits += (num_commits(model) or 0) - before
