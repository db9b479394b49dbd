"""Multigrid in the Trainer of Hugging Face transformers, with a video transformer.

vcycle data synth /tmp/videos
python -m examples.transformers_trainer /tmp/videos
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

import vcycle
from examples.small_run import small_plan, training_clips
from examples.video_transformer import videomae


class PlanTrainer(Trainer):
    """A Trainer whose batches and rates are those of ``plan``, which is one epoch to it."""

    def get_train_dataloader(self) -> DataLoader[dict[str, vcycle.Batch]]:
        """The plan's batches, without ``accelerator.prepare``, which would share them out again."""
        dataset, micro_batches = self.train_dataset, self.args.gradient_accumulation_steps
        sampler = vcycle.PlanSampler(self.plan, len(dataset), 0, micro_batches=micro_batches)
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=self.data_collator)

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], **_: Any) -> Tensor:
        """The loss of a micro-batch; Trainer divides it by their number."""
        batch = inputs["batch"].to(self.args.device)
        vcycle.apply_step(batch, model=model, optimizer=self.optimizer)
        loss = F.cross_entropy(model(vcycle.normalize(batch.clips)), batch.labels)
        self.losses.append(loss.item())
        return loss


def main(folder: str, *, steps: int = 200, micro_batches: int = 1, **options: Any) -> list[float]:
    """Train on the manifest in ``folder``; the losses of the micro-batches in this process."""
    dataset = training_clips(folder)
    rule = vcycle.ShapeRule(frame_multiple=2, side_multiple=16)  # whole tubes and patches
    multigrid = vcycle.Multigrid(norm_group=None, rate_exponent=0.5, rule=rule)
    plan = small_plan(len(dataset), steps=steps, rate=0.001, multigrid=multigrid)
    torch.manual_seed(0)
    size = {"frames": 8, "side_pixels": 32, "width": 32, "layers": 1, "heads": 2}
    model = videomae(num_classes=dataset.manifest.num_classes, **size)
    groups = vcycle.parameter_groups(model, weight_decay=1e-4)
    optimizer = torch.optim.AdamW(groups, lr=0.001, betas=(0.9, 0.999))
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
