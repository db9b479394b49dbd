"""A learning-rate scheduler of torch's kind that follows a plan, for loops that want one.

In: an optimizer and a plan. Out: after each ``scheduler.step()`` the rates, and with a model the
norm groups and token shares, of the step that is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vcycle.data.batch import Batch
from vcycle.data.sampler import run_number
from vcycle.models import commit_statistics, set_dropout_seeds, set_norm_group, set_token_share
from vcycle.models.wrapped import inner_optimizer
from vcycle.schedule.arguments import check_type
from vcycle.schedule.plan import Plan, Step
from vcycle.train.model_checks import (
    check_batch,
    check_batch_norms,
    check_parts,
    warn_of_evaluation,
)
from vcycle.train.optimizer_watch import step_was_skipped, watch
from vcycle.train.rates import rate_factors, set_rates, warn_of_rate


class PlanLR(LRScheduler):
    """The rates of a plan, step by step: call ``step()`` once after each optimizer step.

    Every parameter group gets the plan's rate times its own factor: its initial rate over the
    baseline's, or over the largest if no group began there, with a warning; initial rates of 0
    throughout count as equal. With a ``model``, its norm groups and the share of its tokens are set
    too; seeds of dropout belong to a batch, and ``check`` sets them.

    A step that a gradient scaler skipped counts as one: its clips are used up.

    Args:
        last_epoch: plan steps that were done before, less 1, as in torch's schedulers.

    Raises ValueError if the model's batch norms would ignore the norm groups, or it cannot drop
    tokens and the plan does.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        plan: Plan,
        model: nn.Module | None = None,
        *,
        last_epoch: int = -1,
    ) -> None:
        check_type("plan", plan, Plan, example="vcycle.Plan(baseline, vcycle.Multigrid())")
        if not -1 <= last_epoch < len(plan):
            raise ValueError(f"last_epoch {last_epoch}: give -1 to {len(plan) - 1}")
        if model is not None:
            check_batch_norms(model, plan[0].norm_group)
        self.plan = plan
        self.model = model
        self._watch = watch(inner_optimizer(optimizer))
        self._watch.has_plan_lr = True
        self._see()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in parameters:  # all of them: any one may take no part in a step
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_gradients_noted(self))
        if last_epoch == -1:
            warn_of_rate(optimizer, base_rate=plan.baseline.learning_rate.base)
        self._factors(optimizer)  # keeps the initial rates, which torch asks for if it resumes
        super().__init__(optimizer, last_epoch)

    @property
    def due(self) -> Step:
        """The plan's step whose rate is set; after the last step, still that one."""
        return self.plan[min(self.last_epoch, len(self.plan) - 1)]

    def get_lr(self) -> list[float | Tensor]:
        """The rate of each parameter group in the step that is due."""
        return [factor * self.due.learning_rate for factor in self._factors(self.optimizer)]

    def step(self, epoch: int | None = None) -> None:
        """Go on to the plan's next step.

        Raises ValueError if the optimizer has not stepped since the last call, unless a gradient
        scaler kept it from it, or stepped more than once; after the end of the plan; or if an
        ``epoch`` is given.
        """
        if epoch is not None:
            raise ValueError(f"epoch {epoch}: call step() after each optimizer step instead")
        is_initial = self._step_count == 0
        if not is_initial:
            self._check_pace()
        super().step()
        self._apply()

    def check(self, batch: Batch) -> None:
        """Raise ValueError unless ``batch`` is of the step that is due, by this plan.

        And, with a ``model``, if its layers would not see the batch's parts as one; its dropout
        then has the seeds of the batch's clips. Warns of a model in evaluation mode. Raises
        TypeError if ``batch`` is no ``Batch``.
        """
        check_batch(batch)
        if self.last_epoch >= len(self.plan) or batch.step != self.due:
            raise ValueError(
                f"batch of step {batch.step.index}, {batch.step.batch_size} x {batch.step.shape}: "
                f"step {self.last_epoch} of this plan is due ({self.due.batch_size} x "
                f"{self.due.shape}); give PlanSampler and PlanLR one plan, and call "
                f"scheduler.step() once after each optimizer step (to resume: "
                f"scheduler.load_state_dict)"
            )
        if self.model is not None and batch.part is not None:
            warn_of_evaluation(self.model)
            check_parts(self.model, batch.part)
            set_dropout_seeds(self.model, batch.part.dropout_seeds)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers: the steps done, and of what plan."""
        done = {"last_epoch": self.last_epoch, "_step_count": self._step_count}
        return {**done, **self._totals(), "plan": run_number(self.plan, 0)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state, and set its rates; raises ValueError if it is of another plan."""
        for name, value in self._totals().items():
            if state_dict.get(name) != value:
                raise ValueError(
                    f"{name} {value} of the plan: the state has {state_dict.get(name)}; resume "
                    f"with the plan that the run began with"
                )
        if state_dict.get("plan") != run_number(self.plan, 0):
            raise ValueError(
                "state: it is of another plan of as many steps and clips, or says none; "
                "resume with the plan that the run began with"
            )
        self.last_epoch = state_dict["last_epoch"]
        self._step_count = state_dict["_step_count"]
        self._see()  # steps of this process since the state was kept are not the plan's
        self._apply()

    def _apply(self) -> None:
        set_rates(self.optimizer, self.due.learning_rate, self._factors(self.optimizer))
        self._last_lr = self.get_lr()
        if self.model is not None:
            set_norm_group(self.model, self.due.norm_group)
            set_token_share(self.model, self.due.token_share)

    def _see(self) -> None:
        """Count the optimizer's steps from here on."""
        self._steps_seen = self._watch.num_steps
        self._updates_seen = self._watch.num_updates
        self._has_gradients = False

    def _factors(self, optimizer: Optimizer) -> list[float]:
        return rate_factors(optimizer, base_rate=self.plan.baseline.learning_rate.base)

    def _totals(self) -> dict[str, int]:
        return {"steps": len(self.plan), "clips": self.plan.num_clips}

    def _check_pace(self) -> None:
        if self.last_epoch >= len(self.plan):
            raise ValueError(
                f"scheduler.step(): all {len(self.plan)} steps of the plan are done; call it once "
                f"after each optimizer step"
            )
        times = self._watch.num_updates - self._updates_seen
        if times > 1:
            raise ValueError(
                f"scheduler.step(): the optimizer has stepped {times} times for step "
                f"{self.last_epoch} of the plan; call both once for each batch of it"
            )
        has_stepped = self._watch.num_steps != self._steps_seen
        # Whether it was skipped is asked last: a GPU is waited for, parameter by parameter.
        if not (has_stepped or (self._has_gradients and step_was_skipped(self.optimizer))):
            if self._step_count == 1:
                raise ValueError(
                    "scheduler.step(): the optimizer has not stepped yet; call it once after each "
                    "optimizer.step()"
                )
            raise ValueError(
                f"scheduler.step(): stepped twice for optimizer step {self.last_epoch - 1}; call "
                f"it once after each optimizer.step(), not for each micro-batch or process (with "
                f"Accelerate, keep PlanLR out of prepare()); before a step is left out, call "
                f"backward() all the same"
            )
        if not has_stepped and self.model is not None:
            commit_statistics(self.model)  # which the optimizer would have done
        self._see()


def _gradients_noted(scheduler: PlanLR) -> Callable[[Tensor], None]:
    """A hook of a parameter that does not keep the scheduler, and its optimizer, from ending."""
    known = ref(scheduler)

    def note(_: Tensor) -> None:
        if (scheduler := known()) is not None:
            scheduler._has_gradients = True

    return note
