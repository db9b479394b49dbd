"""Multigrid in a training loop of your own: a plan, its sampler, and two lines before each step.

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

    # The run without multigrid, and its plan with it.
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
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = vcycle.convert_batch_norm(
        nn.Sequential(
            nn.Conv3d(3, 16, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), bias=False),
            nn.BatchNorm3d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(16, videos.num_classes),
        )
    ).to(device)

    # Any optimizer. Its rates are those of the baseline; the plan scales every group's alike.
    rate = baseline.learning_rate.base
    groups = [
        {"params": model[:-1].parameters(), "lr": rate},
        {"params": model[-1].parameters(), "lr": 2 * rate},  # a fresh classifier, faster
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    ratios = [group["lr"] / rate for group in optimizer.param_groups]

    # The sampling grid of every clip: a random stride from 1, a random short side from 52 pixels.
    grids = vcycle.GridRange(baseline.shape, stride=1, short_side=(52, 68))
    loader = vcycle.train_loader(
        vcycle.ClipDataset(videos, grids),
        vcycle.PlanSampler(plan, len(videos), seed=0),
        num_workers=1,
    )
    for step, batch in zip(plan, loader, strict=True):
        for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
            group["lr"] = ratio * step.learning_rate
        vcycle.set_norm_group(model, step.norm_group)
        batch = batch.to(device)
        loss = nn.functional.cross_entropy(model(vcycle.normalize(batch.clips)), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step.index:4d}  {step.batch_size:3d} x {step.shape}  loss {loss.item():.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
