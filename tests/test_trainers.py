"""What trainers insist on: it works, or it is refused with the reason, never a silent drift."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import vcycle
from tests.data.test_collate import Frames
from tests.train.plans import BASELINE
from vcycle.schedule.plan import Multigrid, Plan

PLAN = Plan(replace(BASELINE, num_videos=12), Multigrid(norm_group=4))


def loader(**options):
    return DataLoader(
        vcycle.ClipsOf(Frames()),
        batch_sampler=vcycle.PlanSampler(PLAN, 12, 0, **options),
        collate_fn=vcycle.collate,
    )


def model_and_optimizer():
    model = vcycle.convert_batch_norm(
        nn.Sequential(nn.Conv3d(3, 2, 1), nn.BatchNorm3d(2), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(batches, model, optimizer):
    for batch in batches:
        vcycle.apply_step(batch, model=model, optimizer=optimizer)
        model(vcycle.normalize(batch.clips)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_accelerate_shares_batches_out_in_turn_which_is_refused():
    shard = pytest.importorskip("accelerate.data_loader").BatchSamplerShard
    batches = DataLoader(
        vcycle.ClipsOf(Frames()),
        batch_sampler=shard(loader().batch_sampler, num_processes=2, process_index=0),
        collate_fn=vcycle.collate,
    )
    with pytest.raises(ValueError, match=r"batch of step 2, .*: step 1, .*no trainer shuffle"):
        train(batches, *model_and_optimizer())


def test_accelerate_steps_a_prepared_scheduler_once_a_process_which_is_refused(monkeypatch):
    accelerate = pytest.importorskip("accelerate")
    model, optimizer = model_and_optimizer()
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer, scheduler = accelerator.prepare(
        model, optimizer, vcycle.PlanLR(optimizer, PLAN)
    )
    two = SimpleNamespace(num_processes=2)
    monkeypatch.setattr("accelerate.scheduler.AcceleratorState", lambda: two)
    model(torch.randn(8, 3, 2, 2, 2)).square().sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"stepped twice .*Accelerate, keep PlanLR out of prepare"):
        scheduler.step()


def test_a_loader_that_accelerate_prepared_for_one_process_works():
    accelerate = pytest.importorskip("accelerate")
    prepared = accelerate.Accelerator(cpu=True).prepare(loader())
    train(prepared, *model_and_optimizer())


def test_lightning_refuses_to_wrap_the_sampler_for_several_processes():
    data = pytest.importorskip("pytorch_lightning.utilities.data")
    with pytest.raises(TypeError, match="use_distributed_sampler=False"):
        data._update_dataloader(loader(), DistributedSampler(range(12), 2, 0))


def test_a_second_epoch_is_refused():
    model, optimizer = model_and_optimizer()
    batches = loader()
    train(batches, model, optimizer)
    with pytest.raises(ValueError, match=r"step 0: the loader was begun anew, .*max_epochs=1"):
        train(batches, model, optimizer)


def test_more_micro_batches_than_the_trainer_accumulates_are_refused():
    model, optimizer = model_and_optimizer()
    vcycle.defer_statistics(model, optimizer)
    with pytest.raises(ValueError, match="micro-batch 1: the optimizer has stepped since micro-ba"):
        train(loader(micro_batches=2), model, optimizer)


def test_fewer_micro_batches_than_the_trainer_accumulates_are_refused():
    accelerate = pytest.importorskip("accelerate")
    model, optimizer = model_and_optimizer()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer = accelerator.prepare(model, optimizer)

    def step(batch):
        with accelerator.accumulate(model):
            vcycle.apply_step(batch, model=model, optimizer=optimizer)
            accelerator.backward(model(vcycle.normalize(batch.clips)).square().sum())
            optimizer.step()
            optimizer.zero_grad()

    batches = iter(loader())
    step(next(batches))
    with pytest.raises(ValueError, match="step 1: the optimizer has not stepped since the last"):
        step(next(batches))


def test_training_that_ends_before_the_plan_is_told():
    """As Lightning ends it: it counts the steps before a resume twice."""
    with pytest.raises(ValueError, match="no place in a plan; give that of the apply_step calls"):
        vcycle.check_finished(PLAN, model_and_optimizer()[1])
    model, optimizer = model_and_optimizer()
    batches = list(loader())
    train(batches[:-1], model, optimizer)
    message = f"after {len(PLAN) - 1} of the plan's {len(PLAN)} steps; let .*StatefulDataLoader"
    with pytest.raises(ValueError, match=message):
        vcycle.check_finished(PLAN, optimizer)
    vcycle.apply_step(batches[-1], model=model, optimizer=optimizer)
    model(vcycle.normalize(batches[-1].clips)).square().sum().backward()
    with pytest.raises(ValueError, match=message):
        vcycle.check_finished(PLAN, SimpleNamespace(optimizer=optimizer))
    optimizer.step()
    vcycle.check_finished(PLAN, SimpleNamespace(optimizer=optimizer))
