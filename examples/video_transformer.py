"""A video transformer from outside, trained with multigrid: VideoMAE from ``transformers``.

    pip install 'vcycle[transformers]'
    vcycle train scratch --data videos --model examples.video_transformer:videomae \
        --multigrid.rule.frame_multiple 2 --multigrid.rule.side_multiple 16 ...

The one thing to change in it is what is tied to one shape: a table of positions, one for each
patch. Here the table is that of the largest shape, and smaller clips get it interpolated, so that
a coarse sampling grid sees the positions that its points have on the fine one. Attention shares
its weights over positions, so the rest fits any shape whose sides are whole numbers of patches
(16 pixels) and tubes (2 frames): give the plan multiples of those. There is no batch normalisation,
so norm groups do nothing.

The weights expect each channel normalised by its own mean and deviation, and ``vcycle train`` gives
clips that are by one: the model changes those into these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import VideoMAEConfig, VideoMAEForVideoClassification

from vcycle.data.batch import MEAN, STD

# Of the channels of ImageNet's pixels, which the published weights were trained with.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class InterpolatedEmbeddings(nn.Module):
    """Patches plus positions, the positions resized to the clip's own grid of patches."""

    def __init__(self, embeddings: nn.Module, config: VideoMAEConfig) -> None:
        super().__init__()
        self.patch_embeddings = embeddings.patch_embeddings
        self.patch = (config.tubelet_size, config.patch_size, config.patch_size)
        largest = (config.num_frames, config.image_size, config.image_size)
        grid = [size // patch for size, patch in zip(largest, self.patch, strict=True)]
        positions = embeddings.position_embeddings.view(1, *grid, -1).permute(0, 4, 1, 2, 3)
        self.positions = positions.contiguous()  # (1, D, t, h, w)
        self.register_buffer("table", torch.empty_like(self.positions), persistent=False)
        self.fill()

    def fill(self) -> None:
        self.table.copy_(self.positions)

    def forward(self, pixel_values: Tensor, bool_masked_pos: Tensor | None = None) -> Tensor:
        clips = pixel_values.transpose(1, 2)  # (B, 3, T, H, W)
        for side, size, patch in zip("THW", clips.shape[2:], self.patch, strict=True):
            if size % patch:
                raise ValueError(f"{side} is {size}; give a multiple of {patch}")
        patches = self.patch_embeddings.projection(clips)  # (B, D, t, h, w)
        positions = F.interpolate(self.table, size=patches.shape[2:], mode="trilinear")
        return (patches + positions).flatten(2).transpose(1, 2)  # (B, t h w, D)


class ImageNetNormalization(nn.Module):
    """Clips of ``vcycle.normalize`` to those of the published weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.empty(3, 1, 1, 1), persistent=False)
        self.register_buffer("shift", torch.empty(3, 1, 1, 1), persistent=False)
        self.fill()

    def fill(self) -> None:
        device = self.scale.device
        mean, std = torch.tensor([IMAGENET_MEAN, IMAGENET_STD], device=device).view(2, 3, 1, 1, 1)
        self.scale.copy_(STD / std)
        self.shift.copy_((MEAN - mean) / std)

    def forward(self, clips: Tensor) -> Tensor:
        return clips * self.scale + self.shift


class VideoMAE(VideoMAEForVideoClassification):
    """(B, 3, T, H, W) of ``vcycle.normalize`` in, (B, num_classes) out; state dict as published."""

    def __init__(self, config: VideoMAEConfig) -> None:
        super().__init__(config)
        self.videomae.embeddings = InterpolatedEmbeddings(self.videomae.embeddings, config)
        self.normalization = ImageNetNormalization()

    def initialize_weights(self) -> None:
        """``from_pretrained`` builds without values, and calls this for what is in no file."""
        super().initialize_weights()
        for module in self.modules():
            if isinstance(module, (InterpolatedEmbeddings, ImageNetNormalization)):
                module.fill()

    def forward(self, clips: Tensor) -> Tensor:
        return super().forward(self.normalization(clips).transpose(1, 2)).logits


def videomae(
    *,
    num_classes: int,
    frames: int = 16,
    side_pixels: int = 224,
    width: int = 768,
    layers: int = 12,
    heads: int = 12,
    **config: Any,
) -> nn.Module:
    """VideoMAE-Base by default, with fresh weights.

    ``frames`` and ``side_pixels`` are those of the target shape.

    The published weights name the biases of queries and values as older ``transformers`` did, whose
    reader still knows them. ``vcycle.load_weights`` takes what it has read from their folder:

        published = VideoMAEForVideoClassification.from_pretrained("videomae-base-finetuned")
        torch.save(published.state_dict(), "videomae.pth")
    """
    return VideoMAE(
        VideoMAEConfig(
            num_frames=frames,
            image_size=side_pixels,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            num_labels=num_classes,
            **config,
        )
    )
