"""What the examples train: a small network, and a plan that passes every phase in a minute."""

from __future__ import annotations

from torch import nn

import vcycle


def small_network(num_classes: int) -> nn.Module:
    """Any module that takes (B, 3, T, H, W) and pools globally; norms and dropout are swapped."""
    network = nn.Sequential(
        nn.Conv3d(3, 16, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), bias=False),
        nn.BatchNorm3d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16, num_classes),
    )
    return vcycle.convert_dropout(vcycle.convert_batch_norm(network))


FOR_TRANSFORMERS = vcycle.Multigrid(
    norm_group=None,  # no batch norm
    rate_exponent=0.5,  # Adam
    rule=vcycle.ShapeRule(frame_multiple=2, side_multiple=16),  # whole tubes and patches
)


def small_videomae(num_classes: int) -> nn.Module:
    """A video transformer that takes the shapes of ``FOR_TRANSFORMERS``."""
    from examples.video_transformer import videomae

    return videomae(num_classes=num_classes, frames=8, side_pixels=32, width=32, layers=1, heads=2)


def small_plan(
    num_videos: int,
    *,
    steps: int,
    rate: float = 0.05,
    multigrid: vcycle.Multigrid = vcycle.Multigrid(norm_group=4),
) -> vcycle.Plan:
    """The plan of a baseline of ``steps`` steps of 8 x 8x32x32 whose rate falls twice."""
    baseline = vcycle.Baseline(
        shape=vcycle.Shape(8, 32, 32),
        batch_size=8,
        steps=steps,
        num_videos=num_videos,
        learning_rate=vcycle.LearningRate(rate),
        stage_ends=(steps // 2, steps * 3 // 4),
    )
    return vcycle.Plan(baseline, multigrid)


def training_clips(folder: str) -> vcycle.ClipDataset:
    """The training videos of a manifest: strides from 1, short sides of 36 to 48 pixels."""
    videos = vcycle.Manifest.read(folder).split("train")
    return vcycle.ClipDataset(
        videos, vcycle.GridRange(vcycle.Shape(8, 32, 32), stride=1, short_side=(36, 48))
    )
