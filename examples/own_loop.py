"""Multigrid in a plain PyTorch loop, in one process or several, with or without micro-batches.

vcycle data synth /tmp/videos
python -m examples.own_loop /tmp/videos
torchrun --nproc-per-node 2 -m examples.own_loop /tmp/videos
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import vcycle
from examples.small_run import small_network, small_plan, training_clips


def main(folder: str, *, steps: int = 200, micro_batches: int = 1) -> list[float]:
    """Train on the manifest in ``folder``; the mean loss of each step in this process."""
    dataset = training_clips(folder)
    num_classes = dataset.manifest.num_classes
    plan = small_plan(len(dataset), steps=steps)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    network = small_network(num_classes).to(device)
    vcycle.check_model(network, plan.shapes, num_classes=num_classes)
    model = DistributedDataParallel(network) if dist.is_initialized() else network
    groups = vcycle.parameter_groups(network, weight_decay=1e-4)
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
    vcycle.defer_statistics(network, optimizer)  # of batch norms, over all parts of a batch

    sampler = vcycle.PlanSampler(plan, len(dataset), seed=0, micro_batches=micro_batches)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=vcycle.collate)
    losses = [0.0] * len(plan)
    for batch in loader:
        step = vcycle.apply_step(batch, model=network, optimizer=optimizer)
        batch = batch.to(device)
        model.require_backward_grad_sync = batch.part.is_last  # what DDP's no_sync() sets
        scores = model(vcycle.normalize(batch.clips))
        loss = F.cross_entropy(scores, batch.labels) / micro_batches
        loss.backward()
        losses[step.index] += loss.item()
        if batch.part.is_last:
            optimizer.step()
            optimizer.zero_grad()
            print(f"{step.index:4d}  {step.batch_size:3d} x {step.shape}  {losses[step.index]:.3f}")
    return losses


if __name__ == "__main__":
    if dist.is_torchelastic_launched():
        if torch.cuda.is_available():  # each process has a GPU of its own
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group()
    main(sys.argv[1])
    if dist.is_initialized():
        dist.destroy_process_group()
