"""Multigrid in the Trainer of Hugging Face transformers, with a video transformer.

vcycle data synth /tmp/videos
python -m examples.transformers_trainer /tmp/videos
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import vcycle
from examples.small_run import FOR_TRANSFORMERS, small_plan, small_videomae, training_clips


class PlanTrainer(Trainer):
    """A Trainer whose batches and rates are those of ``plan``, which is one epoch to it."""

    def get_train_dataloader(self) -> DataLoader[dict[str, vcycle.Batch]]:
        """The plan's batches, without ``accelerator.prepare``, which would share them out again."""
        dataset, micro_batches = self.train_dataset, self.args.gradient_accumulation_steps
        sampler = vcycle.PlanSampler(self.plan, len(dataset), 0, micro_batches=micro_batches)
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=self.data_collator)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], **_: Any) -> Tensor:
        """The loss of a micro-batch, which Trainer divides by their number."""
        batch = inputs["batch"].to(self.args.device)
        vcycle.apply_step(batch, model=model, optimizer=self.optimizer)
        loss = nn.functional.cross_entropy(model(vcycle.normalize(batch.clips)), batch.labels)
        self.losses.append(loss.item())
        return loss


def main(folder: str, *, steps: int = 200, micro_batches: int = 1, **options: Any) -> list[float]:
    """Train on the manifest in ``folder``; the losses of the micro-batches in this process."""
    dataset = training_clips(folder)
    plan = small_plan(len(dataset), steps=steps, rate=0.001, multigrid=FOR_TRANSFORMERS)
    torch.manual_seed(0)
    model = small_videomae(dataset.manifest.num_classes)
    optimizer = torch.optim.AdamW(vcycle.parameter_groups(model, weight_decay=1e-4), lr=0.001)
    options |= {"max_steps": len(plan), "gradient_accumulation_steps": micro_batches}
    trainer = PlanTrainer(
        model,
        TrainingArguments(max_grad_norm=0, **options),  # vcycle train clips no gradients
        data_collator=lambda clips: {"batch": vcycle.collate(clips)},
        train_dataset=dataset,
        optimizers=(optimizer, vcycle.PlanLR(optimizer, plan)),
    )
    trainer.plan, trainer.losses = plan, []
    trainer.train()
    return trainer.losses


if __name__ == "__main__":
    main(sys.argv[1])
