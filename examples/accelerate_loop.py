"""Multigrid with Hugging Face Accelerate: prepare model and optimizer, not the loader.

vcycle data synth /tmp/videos
accelerate launch -m examples.accelerate_loop /tmp/videos

PlanSampler shares a step's batch out itself; ``prepare`` would hand whole batches to processes in
turn. No scheduler either: ``prepare`` would step it once a process.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch.nn import functional as F
from torch.utils.data import DataLoader

import vcycle
from examples.small_run import small_network, small_plan, training_clips


def main(folder: str, *, steps: int = 200, micro_batches: int = 1) -> list[float]:
    """Train on the manifest in ``folder``; the mean loss of each step in this process."""
    accelerator = Accelerator(gradient_accumulation_steps=micro_batches)
    dataset = training_clips(folder)
    plan = small_plan(len(dataset), steps=steps)
    torch.manual_seed(0)
    network = small_network(dataset.manifest.num_classes)
    groups = vcycle.parameter_groups(network, weight_decay=1e-4)
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
    vcycle.defer_statistics(network, optimizer)
    model, optimizer = accelerator.prepare(network, optimizer)

    sampler = vcycle.PlanSampler(plan, len(dataset), seed=0, micro_batches=micro_batches)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=vcycle.collate)
    losses = [0.0] * len(plan)
    for batch in loader:
        with accelerator.accumulate(model):
            step = vcycle.apply_step(batch, model=model, optimizer=optimizer)
            batch = batch.to(accelerator.device)
            loss = F.cross_entropy(model(vcycle.normalize(batch.clips)), batch.labels)
            accelerator.backward(loss)  # divides it by the number of micro-batches
            optimizer.step()
            optimizer.zero_grad()
        losses[step.index] += loss.item() / micro_batches
    # DDP's model may not outlive the group of processes, which ends here.
    model, optimizer = accelerator.free_memory(model, optimizer)
    accelerator.end_training()
    return losses


if __name__ == "__main__":
    main(sys.argv[1])
