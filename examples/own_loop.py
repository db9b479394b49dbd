"""Multigrid in a training loop of one's own: the plan, the sampler and three lines in the loop.

vcycle data synth /tmp/videos
python examples/own_loop.py /tmp/videos
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import vcycle


def main(folder: str, *, steps: int = 200) -> None:
    """Train a small network on the manifest in ``folder``, printing a line a step."""
    videos = vcycle.Manifest.read(folder).split("train")

    # The run one would do without multigrid, and its plan with it.
    baseline = vcycle.Baseline(
        shape=vcycle.Shape(8, 48, 48),
        batch_size=8,
        steps=steps,
        num_videos=len(videos),
        learning_rate=vcycle.LearningRate(0.05),
        stage_ends=(steps // 2, steps * 3 // 4),
    )
    plan = vcycle.Plan(baseline, vcycle.Multigrid())

    # Any module that takes (B, 3, T, H, W) and pools globally; its batch norms are swapped.
    model = vcycle.convert_batch_norm(
        nn.Sequential(
            nn.Conv3d(3, 16, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), bias=False),
            nn.BatchNorm3d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(16, videos.num_classes),
        )
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)

    # The sampling grid of every clip: a random stride from 1, a random short side from 52 pixels.
    grids = vcycle.GridRange(baseline.shape, stride=1, short_side=(52, 68))
    loader = vcycle.train_loader(
        vcycle.ClipDataset(videos, grids),
        vcycle.PlanSampler(plan, len(videos), seed=0),
        num_workers=1,
    )
    for step, batch in zip(plan, loader, strict=True):
        optimizer.param_groups[0]["lr"] = step.learning_rate
        vcycle.set_norm_group(model, step.norm_group)
        loss = nn.functional.cross_entropy(model(vcycle.normalize(batch.clips)), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step.index:4d}  {step.batch_size:3d} x {step.shape}  loss {loss.item():.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
