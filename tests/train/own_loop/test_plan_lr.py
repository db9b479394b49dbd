"""The scheduler follows the plan, has a state, and does not go out of step without a word."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import vcycle
from tests.train.plans import BASELINE, PLAN, batch_of
from vcycle.models.tokens import TokenDrop
from vcycle.schedule.baseline import LearningRate
from vcycle.schedule.cycles import LongCycle
from vcycle.schedule.plan import Multigrid, Plan
from vcycle.schedule.shape import Shape


def network():
    return vcycle.convert_batch_norm(nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4)))


def optimizer_of(model, *rates):
    parameters = list(model.parameters())
    return torch.optim.SGD(
        [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=False)]
    )


def step_optimizer(model, optimizer):
    model(torch.randn(64, 3, 2, 2, 2)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("rates", "factors"), [((0.1, 0.3), (1, 3)), ((0.0, 0.0), (1, 1)), ((0.1, 0.0), (1, 0))]
)
def test_it_gives_every_group_the_rates_of_the_plan(rates, factors):
    model = network()
    optimizer = optimizer_of(model, *rates)
    scheduler = vcycle.PlanLR(optimizer, PLAN, model)
    assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)
    for step in PLAN:
        expected = pytest.approx([step.learning_rate * factor for factor in factors])
        assert [group["lr"] for group in optimizer.param_groups] == expected
        assert scheduler.get_last_lr() == expected
        assert model[1].norm_group == step.norm_group
        scheduler.check(batch_of(step))
        step_optimizer(model, optimizer)
        optimizer.zero_grad()
        scheduler.step()
    step_optimizer(model, optimizer)
    with pytest.raises(ValueError, match=f"all {len(PLAN)} steps of the plan are done"):
        scheduler.step()


def test_stepping_it_before_the_optimizer_is_refused():
    optimizer = optimizer_of(network(), 0.1)
    with pytest.raises(ValueError, match="the optimizer has not stepped yet; call it once after"):
        vcycle.PlanLR(optimizer, PLAN).step()


@pytest.mark.parametrize("clears", [False, True])
def test_stepping_it_twice_is_refused(clears):
    model = network()
    optimizer = optimizer_of(model, 0.1)
    scheduler = vcycle.PlanLR(optimizer, PLAN)
    for _ in range(3):
        step_optimizer(model, optimizer)
        if clears:
            optimizer.zero_grad()
        scheduler.step()
    with pytest.raises(ValueError, match="stepped twice for optimizer step 2; call it once after"):
        scheduler.step()


def test_stepping_the_optimizer_twice_is_refused():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    scheduler = vcycle.PlanLR(optimizer, PLAN)
    for _ in range(2):
        step_optimizer(model, optimizer)
    with pytest.raises(ValueError, match="optimizer has stepped 2 times for step 0 of the plan"):
        scheduler.step()


def test_a_state_that_is_loaded_again_forgets_the_steps_since():
    """As of a loop that goes back after a bad loss."""
    model = network()
    optimizer = optimizer_of(model, 0.1)
    scheduler = vcycle.PlanLR(optimizer, PLAN)
    for number in range(4):
        step_optimizer(model, optimizer)
        if number < 3:
            scheduler.step()
            kept = scheduler.state_dict()
    scheduler.load_state_dict(kept)
    with pytest.raises(ValueError, match="stepped twice for optimizer step 2"):
        scheduler.step()
    step_optimizer(model, optimizer)
    scheduler.step()
    assert scheduler.due == PLAN[4]


def test_a_step_that_made_the_optimizer_s_state_is_none_of_the_plan():
    """torch.distributed.checkpoint takes one at a rate of 0."""
    model = network()
    optimizer = optimizer_of(model, 0.1)
    scheduler = vcycle.PlanLR(optimizer, PLAN)
    rate = optimizer.param_groups[0]["lr"]
    optimizer.param_groups[0]["lr"] = 0.0
    step_optimizer(model, optimizer)
    optimizer.param_groups[0]["lr"] = rate
    step_optimizer(model, optimizer)
    scheduler.step()
    assert scheduler.due == PLAN[1]


def test_stepping_it_for_each_micro_batch_is_refused():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    scheduler = vcycle.PlanLR(optimizer, PLAN)
    step_optimizer(model, optimizer)
    scheduler.step()
    optimizer.zero_grad()
    model(torch.randn(64, 3, 2, 2, 2)).square().sum().backward()  # the first of two micro-batches
    with pytest.raises(ValueError, match="not for each micro-batch or process"):
        scheduler.step()


@pytest.mark.parametrize("clears", [False, True])
def test_a_step_that_a_gradient_scaler_skipped_counts(clears):
    """A parameter without gradients, as of a head that is not used, changes nothing."""
    model = network()
    parameters = [*model.parameters(), nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    scheduler = vcycle.PlanLR(optimizer, PLAN)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for index in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 3, 2, 2, 2)).square().sum()
        if index in (1, 2):
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if clears:
            optimizer.zero_grad()
        scheduler.step()
    assert scheduler.due == PLAN[4]


def test_a_batch_may_be_left_out_after_its_backward():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    scheduler = vcycle.PlanLR(optimizer, PLAN)
    for index in range(4):
        loss = model(torch.randn(64, 3, 2, 2, 2)).square().sum()
        if index in (1, 3):
            (loss * torch.nan).backward()
        else:
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    assert scheduler.due == PLAN[4]
    with pytest.raises(ValueError, match="before a step is left out, call backward"):
        scheduler.step()


def test_a_state_resumes_and_belongs_to_one_plan():
    model = network()
    optimizer = optimizer_of(model, 0.1, 0.2)
    scheduler = vcycle.PlanLR(optimizer, PLAN, model)
    for _ in range(7):
        step_optimizer(model, optimizer)
        scheduler.step()
    state, optimizer_state = scheduler.state_dict(), optimizer.state_dict()
    assert all(isinstance(value, int) for value in state.values())

    other = network()
    again = optimizer_of(other, 0.0, 0.0)
    resumed = vcycle.PlanLR(again, PLAN, other)
    again.load_state_dict(optimizer_state)
    resumed.load_state_dict(state)
    assert resumed.due == PLAN[7]
    assert [group["lr"] for group in again.param_groups] == scheduler.get_last_lr()
    assert other[1].norm_group == PLAN[7].norm_group
    step_optimizer(other, again)
    resumed.step()
    assert resumed.due == PLAN[8]

    longer = Plan(replace(BASELINE, steps=80), Multigrid(norm_group=4))
    with pytest.raises(ValueError, match=r"steps \d+ of the plan: the state has \d+; resume with"):
        vcycle.PlanLR(optimizer_of(network(), 0.1), longer).load_state_dict(state)
    larger = Plan(replace(BASELINE, batch_size=16), PLAN.multigrid)
    assert len(larger) == len(PLAN)
    with pytest.raises(ValueError, match=r"clips \d+ of the plan: the state has \d+; resume with"):
        vcycle.PlanLR(optimizer_of(network(), 0.1), larger).load_state_dict(state)
    smaller = Plan(replace(BASELINE, shape=Shape(4, 32, 32)), PLAN.multigrid)
    assert (len(smaller), smaller.num_clips) == (len(PLAN), PLAN.num_clips)
    with pytest.raises(ValueError, match="state: it is of another plan of as many steps and clips"):
        vcycle.PlanLR(optimizer_of(network(), 0.1), smaller).load_state_dict(state)


def test_the_end_of_the_plan_is_told_from_an_earlier_one():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    scheduler = vcycle.PlanLR(optimizer, PLAN, model)
    for done in range(len(PLAN)):
        with pytest.raises(ValueError, match=f"ended after {done} of the plan's {len(PLAN)} steps"):
            vcycle.check_finished(PLAN, scheduler)
        step_optimizer(model, optimizer)
        scheduler.step()
    vcycle.check_finished(PLAN, scheduler)
    longer = Plan(replace(BASELINE, steps=80), PLAN.multigrid)
    with pytest.raises(ValueError, match="scheduler: it is of another plan"):
        vcycle.check_finished(longer, scheduler)
    with pytest.raises(ValueError, match="no place in a plan; give that of the apply_step calls"):
        vcycle.check_finished(PLAN, optimizer)


def test_a_model_in_evaluation_mode_is_told_of():
    model = network()
    scheduler = vcycle.PlanLR(optimizer_of(model, 0.1), PLAN, model)
    model.eval()
    with pytest.warns(UserWarning, match="in evaluation mode.*call model.train"):
        scheduler.check(batch_of(PLAN[0]))


def test_it_begins_where_a_run_goes_on():
    optimizer = optimizer_of(network(), 0.1)
    assert vcycle.PlanLR(optimizer, PLAN, last_epoch=4).due == PLAN[5]
    with pytest.raises(ValueError, match="last_epoch"):
        vcycle.PlanLR(optimizer, PLAN, last_epoch=len(PLAN))


def test_batches_of_another_step_or_plan_are_refused():
    scheduler = vcycle.PlanLR(optimizer_of(network(), 0.1), PLAN)
    faster = Plan(replace(BASELINE, learning_rate=LearningRate(0.3)), PLAN.multigrid)
    for wrong in (PLAN[1], faster[0]):
        with pytest.raises(ValueError, match=r"step 0 of this plan is due .*PlanSampler.*resume: "):
            scheduler.check(batch_of(wrong))
    with pytest.raises(ValueError, match=r"epoch 3: call step\(\) after each optimizer step"):
        scheduler.step(3)


class Tokens(nn.Module):
    """It takes tokens, (B, N, C)."""

    def __init__(self):
        super().__init__()
        self.drop = TokenDrop()
        self.head = nn.Linear(2, 1)

    def forward(self, tokens):
        return self.head(self.drop(tokens))


def test_a_model_drops_the_tokens_of_the_plan():
    cycle = LongCycle(((1.0, 1.0), (1.0, 1.0)), shares=(0.5, 0.5), tokens=(0.25, 1.0), once=True)
    multigrid = Multigrid(
        long_cycle=cycle, short_cycle=None, fine_tuning=False, norm_group=None, steps=6
    )
    plan = Plan(replace(BASELINE, stage_ends=()), multigrid)
    model = Tokens()
    optimizer = optimizer_of(model, 0.1)
    scheduler = vcycle.PlanLR(optimizer, plan, model)
    shares = []
    for _ in plan:
        shares.append(model.drop.share)
        model(torch.randn(2, 8, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
    assert shares == [step.token_share for step in plan]
    assert set(shares) == {0.25, 1.0}
    with pytest.raises(ValueError, match="the model cannot drop any"):
        vcycle.PlanLR(optimizer_of(network(), 0.1), plan, network())


def test_a_model_that_would_ignore_norm_groups_is_refused():
    plain = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4))
    optimizer = optimizer_of(plain, 0.1)
    with pytest.raises(ValueError, match=r"1 nn.BatchNorm3d .*vcycle.convert_batch_norm\(model\)"):
        vcycle.PlanLR(optimizer, PLAN, plain)
    without = Plan(BASELINE, replace(PLAN.multigrid, norm_group=None))
    assert vcycle.PlanLR(optimizer, without, plain).due == without[0]


def test_an_optimizer_whose_last_group_is_empty_or_frozen():
    """As ``parameter_groups`` makes of a model without norms."""
    model = nn.Sequential(nn.Conv3d(3, 4, 1), nn.Conv3d(4, 4, 1))
    model[1].requires_grad_(False)
    optimizer = torch.optim.SGD(
        [{"params": list(model.parameters())}, {"params": [], "weight_decay": 0.0}], lr=0.1
    )
    scheduler = vcycle.PlanLR(optimizer, PLAN)
    step_optimizer(model, optimizer)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == PLAN[1].learning_rate
    with pytest.raises(ValueError, match="stepped twice for optimizer step 0"):
        scheduler.step()


def test_parts_of_a_batch_are_checked_with_the_batch():
    model = network()
    scheduler = vcycle.PlanLR(optimizer_of(model, 0.1), PLAN, model)
    halves = batch_of(PLAN[0], micro_batches=2)
    with pytest.raises(ValueError, match=r"one of 2 parts .*vcycle.defer_statistics\(model, opt"):
        scheduler.check(halves)
    vcycle.defer_statistics(model)
    scheduler.check(halves)


def test_a_batch_of_another_collate_is_named():
    scheduler = vcycle.PlanLR(optimizer_of(network(), 0.1), PLAN)
    with pytest.raises(TypeError, match=r"batch dict: give the loader's .*collate_fn=vcycle.coll"):
        scheduler.check({"clips": torch.zeros(1)})


def test_another_rate_than_the_baselines_is_warned_of_once():
    model = network()
    optimizer = optimizer_of(model, 8.0, 2.0)
    with pytest.warns(UserWarning, match=r"began at a rate of 8, .* baseline's 0\.1") as caught:
        scheduler = vcycle.PlanLR(optimizer, PLAN, model)
    assert [Path(each.filename).name for each in caught] == ["test_plan_lr.py"]
    step_optimizer(model, optimizer)
    scheduler.step()
    rate = PLAN[1].learning_rate
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([rate, rate / 4])


def test_apply_step_knows_what_rate_the_scheduler_found():
    """It has set another before the first step; a warning would fail here."""
    model = network()
    optimizer = optimizer_of(model, 0.1, 0.3)
    vcycle.PlanLR(optimizer, PLAN, model)
    assert optimizer.param_groups[0]["lr"] == PLAN[0].learning_rate != 0.1
    vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer)


def test_what_is_no_plan_is_refused():
    with pytest.raises(TypeError, match=r"plan Baseline.*: give a vcycle\.Plan"):
        vcycle.PlanLR(optimizer_of(network(), 0.1), BASELINE)


def test_checking_a_batch_gives_dropout_the_seeds_of_its_clips():
    model = vcycle.convert_dropout(network().append(nn.Dropout(0.5)))
    scheduler = vcycle.PlanLR(optimizer_of(model, 0.1), PLAN, model)
    batch = batch_of(PLAN[0])
    scheduler.check(batch)
    ones = torch.ones(len(batch), 4, 2, 2, 2)
    assert torch.equal(model[2](ones), model[2](ones))


def test_it_keeps_no_optimizer_from_ending():
    """Though the parameters, which outlive both, tell it of gradients."""
    model = network()
    optimizer = optimizer_of(model, 0.1)
    scheduler = vcycle.PlanLR(optimizer, PLAN)
    step_optimizer(model, optimizer)
    scheduler.step()
    known = weakref.ref(optimizer)
    del optimizer, scheduler
    gc.collect()
    assert known() is None
    step_optimizer(model, optimizer_of(model, 0.1))
