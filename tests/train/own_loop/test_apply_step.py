"""Rates and norm groups are those of the batch's step; any but the next batch is refused."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import vcycle
from tests.train.plans import BASELINE, PLAN, batch_of
from vcycle.models import TokenDrop
from vcycle.schedule.baseline import LearningRate
from vcycle.schedule.cycles import LongCycle
from vcycle.schedule.plan import Multigrid, Plan


def network():
    return vcycle.convert_batch_norm(
        nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    )


def optimizer_of(model, *rates):
    parameters = list(model.parameters())
    groups = [{"params": [p], "lr": rate} for p, rate in zip(parameters, rates, strict=False)]
    return torch.optim.SGD(groups)


def train(model, optimizer, batches):
    for batch in batches:
        vcycle.apply_step(batch, model=model, optimizer=optimizer)
        model(vcycle.normalize(batch.clips)).sum().backward()
        if batch.part.is_last:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("rates", "factors"),
    [
        ((0.1, 0.2), (1, 2)),  # the first began at the baseline's
        ((0.2, 0.1), (2, 1)),
        ((0.0, 0.0), (1, 1)),
        ((0.1, 0.0), (1, 0)),  # frozen
        ((0.3 / 3, 1.0), (1, 10)),  # not 0.1 to the last bit
        ((torch.tensor(0.1), torch.tensor(1.0)), (1, 10)),
    ],
)
def test_every_group_keeps_its_ratio(rates, factors):
    model = network()
    optimizer = optimizer_of(model, *rates)
    for step in PLAN:
        assert vcycle.apply_step(batch_of(step), model=model, optimizer=optimizer) is step
        found = [float(group["lr"]) for group in optimizer.param_groups]
        assert found == pytest.approx([step.learning_rate * factor for factor in factors])
        assert model[1].norm_group == step.norm_group
        optimizer.step()


@pytest.mark.parametrize("later", [{"lr": 0.1 * 0.1}, {"lr_scale": 0.1}])
def test_a_group_that_is_added_later_counts_from_the_baselines_rate(later):
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    train(model, optimizer, [batch_of(PLAN[0])])
    assert optimizer.param_groups[0]["lr"] != 0.1
    optimizer.add_param_group({"params": model[1].parameters(), **later})
    train(model, optimizer, [batch_of(PLAN[1])])
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([PLAN[1].learning_rate, 0.1 * PLAN[1].learning_rate])


def test_if_no_group_began_at_the_baselines_rate_the_largest_counts_as_it():
    model = network()
    optimizer = optimizer_of(model, 5.0, 2.5)
    with pytest.warns(UserWarning, match=r"began at a rate of 5, .*the plan's follow .*0\.1; give"):
        vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer)
    rate = PLAN[0].learning_rate
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([rate, rate / 2])


def test_rates_that_are_tensors_and_timms_scales():
    model = network()
    group = {"params": list(model.parameters()), "lr": torch.tensor(0.1), "lr_scale": 0.5}
    optimizer = torch.optim.SGD([group])
    rate = optimizer.param_groups[0]["lr"]
    for step in PLAN[:2]:
        vcycle.apply_step(batch_of(step), model=model, optimizer=optimizer)
        assert optimizer.param_groups[0]["lr"] is rate
        assert rate.item() == pytest.approx(step.learning_rate * 0.5)
        optimizer.step()


def test_a_second_optimizer_keeps_its_proportion_as_it_is_told_to():
    """Its own rate says nothing of the first one's, which began at the baseline's."""
    model, head = network(), nn.Linear(2, 2)
    second = torch.optim.AdamW(head.parameters(), lr=0.001)
    with pytest.warns(UserWarning, match=r"lr=0\.1 and in its groups lr_scale=0\.01$"):
        vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=second)
    second = torch.optim.AdamW([{"params": head.parameters(), "lr_scale": 0.01}], lr=0.1)
    first = optimizer_of(model, 0.1)
    for optimizer in (first, second):
        vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer)
    rates = [optimizer.param_groups[0]["lr"] for optimizer in (first, second)]
    assert rates[1] == pytest.approx(rates[0] / 100)


def test_a_whole_plan_in_micro_batches():
    model = network()
    optimizer = optimizer_of(model, 0.1, 0.1)
    vcycle.defer_statistics(model, optimizer)
    train(
        model,
        optimizer,
        [batch_of(s, micro_batch=m, micro_batches=2) for s in PLAN for m in (0, 1)],
    )
    assert model[1].num_batches_tracked == len(PLAN)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ((0, 2), r"batch of step 2, from clip \d+: step 1, .* is due; .*no trainer shuffle, shard"),
        ((0, 0), "batch of step 0, from clip 0: step 1, "),
        ((0, 1, 0), r"batch of step 0: the loader was begun anew, .*max_epochs=1.*first_step=2"),
        ((0, 1, 2, 3, 2), "batch of step 2, .*: step 4, .*first_step=4"),
    ],
)
def test_a_batch_out_of_order_is_refused(indices, message):
    model = network()
    optimizer = optimizer_of(model, 0.1)
    *first, last = (batch_of(PLAN[index]) for index in indices)
    train(model, optimizer, first)
    with pytest.raises(ValueError, match=message):
        train(model, optimizer, [last])


def test_a_batch_of_another_plan_is_refused():
    other = Plan(BASELINE, Multigrid(long_cycle=None, short_cycle=None, norm_group=4))
    model = network()
    optimizer = optimizer_of(model, 0.1)
    train(model, optimizer, [batch_of(PLAN[0])])
    with pytest.raises(ValueError, match=r"batch of step 1, from clip 8: step 1, .*from clip"):
        train(model, optimizer, [batch_of(other[1])])


def test_micro_batches_out_of_order_are_refused():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    vcycle.defer_statistics(model, optimizer)
    micro = [batch_of(PLAN[0], micro_batch=m, micro_batches=2) for m in (0, 1)]
    with pytest.raises(ValueError, match="step 0, micro-batch 1: begin at the first micro-batch"):
        train(model, optimizer, micro[1:])
    train(model, optimizer, micro[:1])
    with pytest.raises(ValueError, match=r"step 0, micro-batch 0, .*: step 0, micro-batch 1"):
        train(model, optimizer, micro[:1])


def test_an_optimizer_that_does_not_keep_pace_is_refused():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    vcycle.defer_statistics(model, optimizer)
    first, second = (batch_of(PLAN[0], micro_batch=m, micro_batches=2) for m in (0, 1))
    train(model, optimizer, [first])
    optimizer.step()
    with pytest.raises(ValueError, match=r"has stepped since micro-batch 0; .*after 2 micro-batch"):
        train(model, optimizer, [second])

    model = network()
    optimizer = optimizer_of(model, 0.1)
    vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer)
    model(torch.ones(8, 3, 1, 1, 1)).sum().backward()
    model[0].weight.grad += 1
    with pytest.raises(ValueError, match="step 1: the optimizer has not stepped since the last"):
        vcycle.apply_step(batch_of(PLAN[1]), model=model, optimizer=optimizer)
    for _ in range(2):
        optimizer.step()
    with pytest.raises(ValueError, match="step 1: the optimizer has stepped 2 times since"):
        vcycle.apply_step(batch_of(PLAN[1]), model=model, optimizer=optimizer)


@pytest.mark.parametrize("clears", [False, True])
def test_a_step_that_a_gradient_scaler_skipped_is_not_held_against_it(clears):
    model = network()
    optimizer = optimizer_of(model, 0.1)
    vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer)
    model[0].weight.grad = torch.full_like(model[0].weight, torch.inf)
    if clears:
        optimizer.zero_grad()
    step = vcycle.apply_step(batch_of(PLAN[1]), model=model, optimizer=optimizer)
    assert step.index == 1


def test_a_skipped_step_does_not_hide_statistics_that_nobody_applies():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    vcycle.defer_statistics(model)  # without the optimizer that would apply them

    def train_on():
        for step in PLAN:
            vcycle.apply_step(batch_of(step), model=model, optimizer=optimizer)
            optimizer.zero_grad()
            if step.index == 0:  # a scaler keeps the optimizer from it
                model[0].weight.grad = torch.full_like(model[0].weight, torch.inf)
                continue
            model(torch.randn(64, 3, 2, 2, 2)).square().sum().backward()
            optimizer.step()

    with pytest.raises(ValueError, match="that it collected in 10 steps were not applied"):
        train_on()


def test_a_model_that_a_validation_left_in_evaluation_mode_is_told_of():
    model = network()
    optimizer = optimizer_of(model, 0.1, 0.1)
    batches = [batch_of(step) for step in PLAN[:3]]
    train(model, optimizer, batches[:1])
    model[1].eval()  # as frozen norms are
    train(model, optimizer, batches[1:2])
    model.eval()
    with pytest.warns(UserWarning, match="in evaluation mode.*call model.train"):
        vcycle.apply_step(batches[2], model=model, optimizer=optimizer)


def test_a_checkpoint_after_a_skipped_step_has_its_statistics_or_says_that_it_has_not():
    model = network()
    optimizer = optimizer_of(model, 0.1, 0.1)
    vcycle.defer_statistics(model, optimizer)
    train(model, optimizer, [batch_of(PLAN[0])])
    before = copy.deepcopy(model.state_dict())
    vcycle.apply_step(batch_of(PLAN[1]), model=model, optimizer=optimizer)
    model(torch.randn(64, 3, 2, 2, 2))
    with pytest.warns(UserWarning, match="lacks the norm statistics of the last step"):
        model.state_dict()
    vcycle.commit_statistics(model)
    assert not torch.equal(model.state_dict()["1.running_mean"], before["1.running_mean"])


@pytest.mark.parametrize("with_scheduler", [False, True])
def test_statistics_of_a_skipped_step_are_those_of_one_batch(with_scheduler):
    """Which plain norms move in every forward pass, whatever the optimizer does."""

    def statistics(micro_batches):
        torch.manual_seed(0)
        model = network()
        optimizer = optimizer_of(model, 0.1)
        if micro_batches > 1:
            vcycle.defer_statistics(model, optimizer)
        scheduler = vcycle.PlanLR(optimizer, PLAN, model) if with_scheduler else None
        generator = torch.Generator().manual_seed(1)
        for step in PLAN[:3]:
            pixels = torch.randn((step.batch_size, 3, 2, 4, 4), generator=generator)
            for number, part in enumerate(pixels.chunk(micro_batches)):
                if scheduler is None:
                    batch = batch_of(step, micro_batch=number, micro_batches=micro_batches)
                    vcycle.apply_step(batch, model=model, optimizer=optimizer)
                loss = model(part).square().sum()
                (loss * (torch.inf if step.index == 1 else 1e-6)).backward()
            if step.index != 1:
                optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
        return [buffer.double() for buffer in model.buffers()]

    torch.testing.assert_close(statistics(2), statistics(1))


@pytest.mark.parametrize("with_scheduler", [False, True])
def test_a_step_left_out_as_its_loss_is_not_finite_moves_no_deferred_statistics(with_scheduler):
    model = network()
    optimizer = optimizer_of(model, 0.1)
    vcycle.defer_statistics(model, optimizer)
    scheduler = vcycle.PlanLR(optimizer, PLAN, model) if with_scheduler else None
    before = []
    for step in PLAN[:4]:
        if scheduler is None:
            vcycle.apply_step(batch_of(step), model=model, optimizer=optimizer)
        before.append([buffer.clone() for buffer in model[1].buffers()])
        pixels = torch.randn(step.batch_size, 3, 2, 4, 4)
        if step.index == 1:
            pixels[0] = torch.inf
        loss = model(pixels).square().sum()
        (1e-6 * loss).backward()
        if loss.isfinite():
            optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
    moved = [not all(map(torch.equal, *pair)) for pair in itertools.pairwise(before)]
    assert moved == [True, False, True]


def test_the_place_survives_a_checkpoint_of_the_optimizer():
    model = network()
    optimizer = optimizer_of(model, 0.1, 0.3)
    train(model, optimizer, map(batch_of, PLAN[:3]))
    state = optimizer.state_dict()
    again = optimizer_of(model, 0.0, 0.0)
    again.load_state_dict(state)
    with pytest.raises(ValueError, match="step 0: the loader was begun anew, and step 3 is due"):
        train(model, again, [batch_of(PLAN[0])])
    train(model, again, [batch_of(PLAN[3])])
    rates = [group["lr"] for group in again.param_groups]
    assert rates == pytest.approx([PLAN[3].learning_rate, 3 * PLAN[3].learning_rate])


def test_a_step_that_was_saved_half_done_is_begun_anew():
    """The gradients of its first micro-batch are in no checkpoint."""
    model = network()
    optimizer = optimizer_of(model, 0.1)
    vcycle.defer_statistics(model, optimizer)
    halves = [batch_of(PLAN[0], micro_batch=m, micro_batches=2) for m in (0, 1)]
    train(model, optimizer, halves[:1])
    again = optimizer_of(model, 0.1)
    again.load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"micro-batch 1, from clip 0: step 0, micro-batch 0, "):
        train(model, again, halves[1:])
    train(model, again, halves)


def test_a_seed_of_numpys_is_kept_as_a_number(tmp_path):
    model = network()
    optimizer = optimizer_of(model, 0.1)
    sampler = vcycle.PlanSampler(PLAN, 24, np.int64(3))
    part = next(iter(sampler))[0].part
    train(model, optimizer, [batch_of(part.step, seed=part.seed)])
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    state = torch.load(tmp_path / "optimizer.pt", weights_only=True)
    assert state["param_groups"][0]["plan_place"][5] == 3
    with pytest.raises(TypeError, match=r"seed 1.5: give a whole number"):
        vcycle.PlanSampler(PLAN, 24, 1.5)


def test_a_run_that_goes_on_with_another_seed_is_refused():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    train(model, optimizer, [batch_of(PLAN[0], seed=3)])
    with pytest.raises(ValueError, match="batch of seed 4: the run's is 3; give PlanSampler that"):
        train(model, optimizer, [batch_of(PLAN[1], seed=4)])


@pytest.mark.parametrize(
    ("baseline", "multigrid", "num_videos"),
    [
        (BASELINE, PLAN.multigrid, 25),
        (replace(BASELINE, learning_rate=LearningRate(0.05)), PLAN.multigrid, 24),
        (BASELINE, replace(PLAN.multigrid, norm_group=2), 24),
        (replace(BASELINE, shape=vcycle.Shape(4, 16, 32)), PLAN.multigrid, 24),
        (BASELINE, replace(Multigrid.named("pass"), norm_group=4, steps=len(PLAN)), 24),
    ],
    ids=["videos", "rate", "groups", "shape", "schedule"],
)
def test_a_run_that_goes_on_with_another_plan_or_other_videos_is_refused(
    baseline, multigrid, num_videos
):
    def batches(plan, num_videos, first_step):
        sampler = vcycle.PlanSampler(plan, num_videos, 0, first_step=first_step)
        part = next(iter(sampler))[0].part
        return [batch_of(part.step, baseline=plan.baseline, run=part.run)]

    model = network()
    optimizer = optimizer_of(model, 0.1)
    train(model, optimizer, batches(PLAN, 24, 0))
    other = batches(Plan(baseline, multigrid), num_videos, 1)
    with pytest.raises(ValueError, match="another plan, or drawn from another number of videos"):
        train(model, optimizer, other)
    train(model, optimizer, batches(Plan(BASELINE, PLAN.multigrid), 24, 1))


@pytest.mark.parametrize("forgets", ["to commit", "the new optimizer"])
def test_statistics_that_nobody_applies_are_refused_before_long(forgets):
    model = network()
    optimizer = optimizer_of(model, 0.1)
    if forgets == "to commit":
        vcycle.defer_statistics(model)
    else:
        vcycle.defer_statistics(model, optimizer)
        train(model, optimizer, [batch_of(PLAN[0])])
        optimizer = optimizer_of(model, 0.1)
    train(model, optimizer, map(batch_of, PLAN[:10]))
    with pytest.raises(
        ValueError, match=r"10 steps were not applied; call vcycle.defer_statistics"
    ):
        train(model, optimizer, [batch_of(PLAN[10])])


def test_norms_may_be_trained_by_another_optimizer_that_steps_more_rarely():
    """As in adversarial training, or where a gradient scaler skips one of two."""
    model = network()
    norms, others = optimizer_of(model[1], 0.1), optimizer_of(model[0], 0.1)
    vcycle.defer_statistics(model, norms)
    for step in PLAN[:12]:
        vcycle.apply_step(batch_of(step), model=model, optimizer=others)
        model(vcycle.normalize(batch_of(step).clips)).sum().backward()
        others.step()
        if step.index % 5 == 4:
            norms.step()
    assert model[1].num_batches_tracked > 0


@pytest.mark.parametrize("how", ["freeze", "eval"])
def test_norms_that_take_no_statistics_ask_for_nothing(how):
    plain = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.AdaptiveAvgPool3d(1))
    for model in (plain, network()):
        vcycle.freeze(model, ["1"]) if how == "freeze" else model[1].eval()
        optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
        vcycle.apply_step(batch_of(PLAN[0], micro_batches=2), model=model, optimizer=optimizer)


def test_norms_without_gradients_that_take_statistics_still_ask():
    model = network()
    model[1].requires_grad_(False)
    with pytest.raises(ValueError, match=r"one of 2 parts .*vcycle.defer_statistics"):
        vcycle.apply_step(
            batch_of(PLAN[0], micro_batches=2), model=model, optimizer=optimizer_of(model, 0.1)
        )


def test_statistics_follow_an_optimizer_in_a_trainers_wrapper():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    vcycle.defer_statistics(model, SimpleNamespace(optimizer=optimizer))
    train(model, optimizer, [batch_of(PLAN[0])])
    assert model[1].num_batches_tracked > 0


def test_statistics_that_the_loop_applies_itself():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    vcycle.defer_statistics(model)
    for step in PLAN[:3]:
        train(model, optimizer, [batch_of(step)])
        vcycle.commit_statistics(model)
    assert model[1].num_batches_tracked > 0


def test_attention_that_drops_weights_is_warned_of():
    model = network().append(nn.MultiheadAttention(4, 2, dropout=0.1))
    optimizer = optimizer_of(model, 0.1)
    vcycle.defer_statistics(model, optimizer)
    with pytest.warns(UserWarning, match=r"1 nn.MultiheadAttention .* the 2 parts .*dropout=0"):
        vcycle.apply_step(batch_of(PLAN[0], world_size=2), model=model, optimizer=optimizer)


@pytest.mark.parametrize("batch_first", [False, True])
def test_transformers_whose_tokens_come_first_are_warned_of(batch_first, recwarn):
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=batch_first)
    layer.self_attn.dropout = 0.0
    model = vcycle.convert_dropout(network().append(layer))
    optimizer = optimizer_of(model, 0.1)
    vcycle.defer_statistics(model, optimizer)
    vcycle.apply_step(batch_of(PLAN[0], world_size=2), model=model, optimizer=optimizer)
    told = [str(each.message) for each in recwarn if "tokens first" in str(each.message)]
    assert len(told) == (not batch_first)
    if told:
        assert told[0].startswith("model: 1 transformer layers take tokens first, so that ")


@pytest.mark.parametrize(
    ("norm", "parts", "is_told"),
    [
        (nn.BatchNorm3d(4), {"world_size": 2}, True),
        (nn.BatchNorm3d(4), {"micro_batches": 2}, True),
        (vcycle.convert_batch_norm(nn.BatchNorm3d(4)), {"world_size": 2}, True),
        (nn.SyncBatchNorm(4), {"world_size": 2}, False),
        (nn.SyncBatchNorm(4), {"micro_batches": 2}, True),
        (nn.BatchNorm3d(4), {}, False),
        (nn.BatchNorm3d(4).eval().requires_grad_(False), {"world_size": 2}, False),
        (nn.GroupNorm(2, 4), {"world_size": 2}, False),
    ],
)
def test_batch_norms_that_see_a_part_of_a_batch_are_warned_of(norm, parts, is_told, recwarn):
    """Without norm groups, by which they would see a batch as one process does."""
    model = nn.Sequential(nn.Conv3d(3, 4, 1), norm)
    part = batch_of(replace(PLAN[0], norm_group=None), **parts)
    vcycle.apply_step(part, model=model, optimizer=optimizer_of(model, 0.1))
    found = [str(each.message) for each in recwarn if "batch norms take stat" in str(each.message)]
    assert bool(found) == is_told
    if is_told:
        assert found == [
            "model: 1 batch norms take statistics from a part of a batch at a time, so that the "
            "number of parts changes the result; call vcycle.convert_batch_norm(model), and plan "
            "with Multigrid(norm_group=8)"
        ]


@pytest.mark.parametrize(
    ("is_taken", "has_gradients"), [(True, True), (False, True), (False, False)]
)
def test_a_checkpoint_says_whether_its_step_was_taken(is_taken, has_gradients, recwarn):
    """One before optimizer.step(), or backward, begins that step anew, or is told of its loss."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, map(batch_of, PLAN[:3]))
    vcycle.apply_step(batch_of(PLAN[3]), model=model, optimizer=optimizer)
    if has_gradients:
        model(vcycle.normalize(batch_of(PLAN[3]).clips)).sum().backward()
    if is_taken:
        optimizer.step()
    state = optimizer.state_dict()
    assert len(optimizer.param_groups[0]["plan_place"]) == 7

    def resumed(index):
        again = torch.optim.SGD(network().parameters(), lr=0.1, momentum=0.9)
        again.load_state_dict(copy.deepcopy(state))
        train(model, again, map(batch_of, PLAN[index:]))
        return again

    if is_taken:
        with pytest.raises(ValueError, match="step 4, micro-batch 0, from clip"):
            resumed(3)
        resumed(4)
        assert not recwarn
        return
    again = resumed(3)
    assert not recwarn
    vcycle.check_finished(PLAN, again)
    with pytest.warns(UserWarning, match=r"saved between .* step 3 is left out; .*first_step=3\)"):
        resumed(4)


def test_groups_that_the_smallest_micro_batch_does_not_hold_are_refused_at_once():
    """That batch is the full grid's, the last of a pass; a model without batch norm has none."""
    sampler = vcycle.PlanSampler(PLAN, 24, 0, micro_batches=4)
    part = next(iter(sampler))[0].part
    assert (8, 4) in part.batches
    assert part.step.norm_group == 8
    batch = batch_of(part.step, micro_batches=4, batches=part.batches)
    model = network()
    with pytest.raises(
        ValueError, match=r"^batch of 8 clips in 4 parts: norm_group 4: .*fewer micro_"
    ):
        vcycle.apply_step(batch, model=model, optimizer=optimizer_of(model, 0.1))
    frozen = network()
    vcycle.freeze(frozen, ["1"])
    vcycle.defer_statistics(frozen, optimizer := optimizer_of(frozen, 0.1))
    vcycle.apply_step(batch, model=frozen, optimizer=optimizer)
    plain = nn.Sequential(nn.Conv3d(3, 4, 1), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    vcycle.defer_statistics(plain, optimizer := optimizer_of(plain, 0.1))
    vcycle.apply_step(batch, model=plain, optimizer=optimizer)


@pytest.mark.parametrize("kind", [nn.SyncBatchNorm, type("Own", (nn.BatchNorm3d,), {})])
def test_batch_norms_of_other_kinds_are_refused_too(kind):
    model = vcycle.convert_batch_norm(nn.Sequential(nn.Conv3d(3, 4, 1), kind(4)))
    with pytest.raises(
        ValueError, match=rf"model: 1 {kind.__name__} take statistics .*as they are"
    ):
        vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer_of(model, 0.1))


def test_models_that_would_ignore_groups_or_parts_are_refused():
    plain = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4))
    optimizer = optimizer_of(plain, 0.1)
    with pytest.raises(ValueError, match=r"1 nn.BatchNorm3d .*vcycle.convert_batch_norm\(model\)"):
        vcycle.apply_step(batch_of(PLAN[0]), model=plain, optimizer=optimizer)
    without = Plan(BASELINE, replace(PLAN.multigrid, norm_group=None))
    vcycle.apply_step(batch_of(without[0]), model=plain, optimizer=optimizer)
    model = network()
    with pytest.raises(ValueError, match=r"one of 2 parts .*vcycle.defer_statistics\(model, opt"):
        vcycle.apply_step(
            batch_of(PLAN[0], world_size=2), model=model, optimizer=optimizer_of(model, 0.1)
        )


def test_dropout_by_process_is_refused_if_a_batch_has_parts():
    model = network().append(nn.Dropout(0.5))
    optimizer = optimizer_of(model, 0.1)
    vcycle.defer_statistics(model, optimizer)
    two = batch_of(PLAN[0], world_size=2)
    with pytest.raises(ValueError, match=r"1 nn.Dropout .*the 2 parts .*vcycle.convert_dropout\(m"):
        vcycle.apply_step(two, model=model, optimizer=optimizer)
    model[-1].p = 0.0
    vcycle.apply_step(two, model=model, optimizer=optimizer)
    for is_off in (False, True):
        model = vcycle.convert_dropout(network().append(nn.Dropout(0.5)))
        if is_off:
            model = network().append(nn.Dropout(0.5).eval())
        optimizer = optimizer_of(model, 0.1)
        vcycle.defer_statistics(model, optimizer)
        vcycle.apply_step(two, model=model, optimizer=optimizer)


def test_what_is_no_training_batch_is_refused():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    batch = batch_of(PLAN[0])
    with pytest.raises(ValueError, match="batch: it is an evaluation's"):
        vcycle.apply_step(replace(batch, part=None), model=model, optimizer=optimizer)
    half = replace(batch, clips=batch.clips[:4], labels=batch.labels[:4], indices=batch.indices[:4])
    with pytest.raises(ValueError, match=r"batch of 4 clips: step 0 has .* keep the trainer from"):
        vcycle.apply_step(half, model=model, optimizer=optimizer)
    with pytest.raises(TypeError, match=r"batch list: .*collate_fn=vcycle.collate"):
        vcycle.apply_step([batch.clips, batch.labels], model=model, optimizer=optimizer)
    with pytest.raises(TypeError, match=r"optimizer int: give a torch.optim.Optimizer"):
        vcycle.apply_step(batch, model=model, optimizer=3)


def test_another_number_of_videos_than_the_plans_is_told_once():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    parts = [requests[0].part for requests in vcycle.PlanSampler(PLAN, 25, 0)]
    with pytest.warns(UserWarning, match=r"num_videos 25 of .* over 24; give .*=25") as told:
        train(model, optimizer, [batch_of(p.step, run=p.run, num_videos=25) for p in parts[:2]])
    assert len(told) == 1
    assert {part.num_videos for part in parts} == {25}


def test_a_call_after_backward_is_refused_and_one_after_the_step_is_told():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(8, 3, 1, 2, 2)).square().sum().backward()
    with pytest.raises(ValueError, match=r"have gradients before the first step .*before the forw"):
        vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer)
    optimizer.step()
    optimizer.zero_grad()
    with pytest.warns(UserWarning, match="it has a state before the first step of the plan"):
        vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer)


@pytest.mark.parametrize("forgets", [False, True])
def test_an_optimizer_without_its_state_in_mid_plan_is_told_of_once(forgets, recwarn):
    model = network()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for _ in range(2)]
    train(model, optimizers[0], map(batch_of, PLAN[:3]))
    if not forgets:
        optimizers[1].load_state_dict(optimizers[0].state_dict())
    train(model, optimizers[1], map(batch_of, PLAN[3:5]))
    told = "optimizer: it has no state at step 3 of the plan; load the checkpoint's (right if it "
    assert [str(each.message).startswith(told) for each in recwarn] == [True] * forgets


def test_a_run_goes_on_by_another_plan_once_its_place_is_forgotten():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, map(batch_of, PLAN[:3]))
    state = optimizer.state_dict()
    longer = Plan(replace(BASELINE, steps=90, stage_ends=(45, 70)), PLAN.multigrid)
    sampler = vcycle.PlanSampler(longer, 24, 0, first_step=3)
    parts = [requests[0].part for requests in sampler]
    batches = [batch_of(part.step, baseline=part.baseline, run=part.run) for part in parts]
    again = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    again.load_state_dict(state)
    with pytest.raises(ValueError, match="batch of step 3"):
        train(model, again, batches)
    state["param_groups"][0].pop("plan_place")
    again = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    again.load_state_dict(state)
    train(model, again, batches)
    vcycle.check_finished(longer, again)


def test_what_begins_a_run_with_an_optimizers_state_passes():
    """A state that steps on zeros made, one that is resumed, and groups that are added later."""
    model = network()

    def new():
        return torch.optim.AdamW(model[0].parameters(), lr=0.1)

    optimizer = new()
    for parameter in model[0].parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.1
    train(model, optimizer, map(batch_of, PLAN[:2]))
    again = new()
    again.load_state_dict(optimizer.state_dict())
    train(model, again, [batch_of(PLAN[2])])
    again.add_param_group({"params": model[1].parameters(), "lr": 0.1})
    train(model, again, [batch_of(PLAN[3])])


def test_a_scheduler_of_torchs_is_told_that_its_rates_are_not_used():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    torch.optim.lr_scheduler.LinearLR(optimizer)
    with pytest.warns(UserWarning, match=r"whose rates are not used: .* after apply_step") as told:
        train(model, optimizer, map(batch_of, PLAN[:2]))
    assert len(told) == 1
    optimizer = optimizer_of(model, 0.1)
    vcycle.PlanLR(optimizer, PLAN)
    train(model, optimizer, [batch_of(PLAN[0])])


class Sam(torch.optim.Optimizer):
    """As sharpness-aware optimizers are written: a second optimizer takes the steps."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=lr)
        self.param_groups = self.base_optimizer.param_groups


def test_an_optimizer_that_lets_another_one_step_is_followed():
    model = network()
    optimizer = Sam(model.parameters(), 0.1)
    vcycle.defer_statistics(model, optimizer)
    for step in PLAN[:3]:
        vcycle.apply_step(batch_of(step), model=model, optimizer=optimizer)
        model(torch.randn(8, 3, 1, 2, 2)).square().sum().backward()
        optimizer.base_optimizer.step()
        optimizer.zero_grad()
    assert model[1].num_batches_tracked == 3
    assert optimizer.state_dict()["param_groups"][0]["plan_place"][0] == 2


def test_an_optimizer_without_a_rate_is_refused():
    model = network()
    optimizer = optimizer_of(model, 0.1)
    optimizer.param_groups[0]["lr"] = None
    with pytest.raises(ValueError, match=r"group 0 has no rate; give SGD .*relative_step=False"):
        vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer)


def test_groups_that_share_a_tensor_as_their_rate_keep_their_ratios():
    """torch gives one to all groups that have none of their own, and to those added later."""
    model, rate = network(), torch.tensor(0.1)
    groups = [{"params": [each]} for each in model[0].parameters()]
    groups[1]["lr_scale"] = 0.5
    optimizer = torch.optim.AdamW(groups, lr=rate)
    vcycle.apply_step(batch_of(PLAN[0]), model=model, optimizer=optimizer)
    optimizer.add_param_group({"params": model[1].parameters()})
    optimizer.step()
    vcycle.apply_step(batch_of(PLAN[1]), model=model, optimizer=optimizer)
    found = [float(group["lr"]) for group in optimizer.param_groups]
    own = PLAN[1].learning_rate
    assert found == pytest.approx([own, own / 2, own])
    assert all(isinstance(group["lr"], torch.Tensor) for group in optimizer.param_groups)
    assert rate == torch.tensor(0.1)


class Logged(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


def test_a_step_that_calls_its_parents_counts_once():
    """Torch runs the hooks of both, once a plain optimizer of the parent's class was made."""
    model = network()
    torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = Logged(model.parameters(), lr=0.1)
    train(model, optimizer, map(batch_of, PLAN[:3]))
    assert optimizer.param_groups[0]["plan_place"][0] == 2


@pytest.mark.parametrize("kind", [torch.optim.SGD, Logged])
@pytest.mark.parametrize("with_scheduler", [False, True])
def test_a_step_that_raises_may_be_tried_again(kind, with_scheduler):
    model = network()
    optimizer = kind(model.parameters(), lr=0.1)
    scheduler = vcycle.PlanLR(optimizer, PLAN) if with_scheduler else None

    def fails():
        raise RuntimeError

    for step in PLAN[:3]:
        if scheduler is None:
            vcycle.apply_step(batch_of(step), model=model, optimizer=optimizer)
        model(torch.randn(8, 3, 1, 2, 2)).square().sum().backward()
        with pytest.raises(RuntimeError):
            optimizer.step(fails)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("rate", [float, torch.tensor])
@pytest.mark.parametrize("keeps", [True, False])
def test_what_distributed_checkpoints_leave_out_is_asked_for(tmp_path, keeps, rate):
    def new(model):
        groups = [
            {"params": [p], "lr_scale": 0.5, "lr": rate(0.1 * 2**place)}
            for place, p in enumerate(model.parameters())
        ]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    def begin(optimizer):
        for group in optimizer.param_groups:
            group["initial_lr"] = float(group["lr"])
        optimizer.param_groups[0]["plan_place"] = [0] * 7

    def batches_of(steps):
        return [batch_of(step, seed=7, run=8) for step in steps]

    model = network()
    optimizer = new(model)
    begin(optimizer)  # which changes nothing where there is no checkpoint
    train(model, optimizer, batches_of(PLAN[:3]))
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(states, checkpoint_id=tmp_path)
    again = network()
    resumed = new(again)
    if keeps:
        begin(resumed)
    states = dict(zip(("model", "optimizer"), get_state_dict(again, resumed), strict=True))
    dcp.load(states, checkpoint_id=tmp_path)
    set_state_dict(
        again, resumed, model_state_dict=states["model"], optim_state_dict=states["optimizer"]
    )
    batches = batches_of(PLAN[3:6])
    if not keeps:
        with pytest.raises(ValueError, match=r"not the rates that it began with; set group\['in"):
            train(again, resumed, batches)
        return
    train(model, optimizer, batches)
    train(again, resumed, batches)
    for mine, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine, other)
    with pytest.raises(ValueError, match="is due"):
        train(again, resumed, batches_of([PLAN[9]]))
    with pytest.raises(ValueError, match="batch of seed 6: the run's is 7"):
        train(again, resumed, [batch_of(PLAN[6], seed=6, run=8)])


def test_a_model_drops_the_tokens_of_the_batchs_step() -> None:
    cycle = LongCycle(((1.0, 1.0), (1.0, 1.0)), shares=(0.5, 0.5), tokens=(0.25, 1.0), once=True)
    multigrid = Multigrid(cycle, None, fine_tuning=False, norm_group=None, steps=6)
    plan = Plan(replace(BASELINE, stage_ends=()), multigrid)
    model = nn.Sequential(nn.Linear(1, 1), TokenDrop())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shares = []
    for step in plan:
        vcycle.apply_step(batch_of(step), model=model, optimizer=optimizer)
        shares.append(model[1].share)
        model(torch.ones(step.batch_size, 8, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert shares == [step.token_share for step in plan]
    assert set(shares) == {0.25, 1.0}
