"""Multigrid in Lightning's Trainer: apply_step in training_step; a plan is one epoch.

pip install pytorch-lightning torchdata
vcycle data synth /tmp/videos
python -m examples.lightning_trainer /tmp/videos
"""

from __future__ import annotations

import sys
from typing import Any

import pytorch_lightning as lightning
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchdata.stateful_dataloader import StatefulDataLoader

import vcycle
from examples.small_run import small_network, small_plan, training_clips


class Classifier(lightning.LightningModule):
    """Any network; ``losses`` are those of the micro-batches in this process."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.losses: list[float] = []

    def training_step(self, batch: vcycle.Batch, _: int) -> Tensor:
        """The loss of a micro-batch; Lightning divides it by their number."""
        vcycle.apply_step(batch, model=self.network, optimizer=self.optimizers())
        loss = F.cross_entropy(self.network(vcycle.normalize(batch.clips)), batch.labels)
        self.losses.append(loss.item())
        self.log("loss", loss, batch_size=len(batch))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """No scheduler: the rate comes with the batch."""
        groups = vcycle.parameter_groups(self.network, weight_decay=1e-4)
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)
        vcycle.defer_statistics(self.network, optimizer)
        return optimizer


def main(folder: str, *, steps: int = 200, micro_batches: int = 1, **options: Any) -> Classifier:
    """Train on the manifest in ``folder``, or go on from ``ckpt_path``, as Lightning saves one."""
    dataset = training_clips(folder)
    plan = small_plan(len(dataset), steps=steps)
    sampler = vcycle.PlanSampler(plan, len(dataset), seed=0, micro_batches=micro_batches)
    loader = StatefulDataLoader(dataset, batch_sampler=sampler, collate_fn=vcycle.collate)
    torch.manual_seed(0)
    module = Classifier(small_network(dataset.manifest.num_classes))
    ckpt_path = options.pop("ckpt_path", None)
    options |= {"max_epochs": 1, "accumulate_grad_batches": micro_batches}
    trainer = lightning.Trainer(use_distributed_sampler=False, **options)
    trainer.fit(module, loader, ckpt_path=ckpt_path)
    vcycle.check_finished(plan, module.optimizers())
    return module


if __name__ == "__main__":
    main(sys.argv[1])
