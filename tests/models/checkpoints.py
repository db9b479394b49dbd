"""Checkpoints as others write them: their names for our layers, and models to fill."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vcycle.models import build_model

IMAGE_KEYS = {"a": ("conv1", "bn1"), "b": ("conv2", "bn2"), "c": ("conv3", "bn3")}

HUB_MODELS = [
    ("slow_r50", (0, 1, 2, 3, 4, 5), 1984965172),
    ("c2d_r50", (0, 1, 3, 4, 5, 6), 7531557),
    ("i3d_r50", (0, 1, 3, 4, 5, 6), 1437001668),
    ("slowfast_r50", (0, 1, 2, 3, 4, 6), 3230875729),
    ("slowfast_r101", (0, 1, 2, 3, 4, 6), 3564669056),
    ("slowfast_r101_50_50_8x8", (0, 1, 2, 3, 4, 6), 756502685),
]
"""PyTorchVideo's hub models (the last is its slowfast_16x8_r101_50_50): the numbers of the blocks,
with and without pooling between, and the checksum of all keys and shapes of version 0.1.5."""


class SmallNet(nn.Module):
    """Layers with the names of the authors' checkpoints, small enough for many files."""

    def __init__(self) -> None:
        super().__init__()
        self.s1 = nn.Conv3d(3, 3, (3, 1, 1))
        self.nonlocal1 = nn.Conv3d(3, 3, 1)
        self.head = nn.Linear(3, 4)


def pytorchvideo_name(key: str, *, blocks: tuple[int, ...], two_pathways: bool) -> str:
    """Our key as PyTorchVideo would call it; written from the outside in, unlike the loader."""
    parts = key.split(".")
    kind = parts[-1]
    if parts[0] == "head":
        return f"blocks.{blocks[-1]}.proj.{kind}"
    block = f"blocks.{blocks[int(parts[0][1]) - 1]}"
    if parts[0].endswith("_fuse"):
        layer = "conv_fast_to_slow" if parts[1] == "conv_f2s" else "norm"
        return f"{block}.multipathway_fusion.{layer}.{kind}"
    pathway, _, rest = parts[1].partition("_")
    if two_pathways:
        block += f".multipathway_blocks.{pathway[-1]}"
    if rest == "stem":
        return f"{block}.{'conv' if parts[2] == 'conv' else 'norm'}.{kind}"
    block += f".res_blocks.{rest[3:]}"
    if parts[2].startswith("branch1"):
        return f"{block}.branch1_{'norm' if parts[2].endswith('bn') else 'conv'}.{kind}"
    letter = parts[3][0]
    layer = f"norm_{letter}" if parts[3].endswith("bn") else f"conv_{letter}"
    return f"{block}.branch2.{layer}.{kind}"


def pytorchvideo_state(model: nn.Module, blocks: tuple[int, ...]) -> dict[str, Tensor]:
    both = any("pathway1" in key for key in model.state_dict())
    return {
        pytorchvideo_name(key, blocks=blocks, two_pathways=both): value
        for key, value in model.state_dict().items()
    }


def image_name(key: str) -> str | None:
    """Our key of a slow pathway as torchvision would call it."""
    parts = key.split(".")
    if parts[0] == "s1":
        return f"{'conv1' if parts[2] == 'conv' else 'bn1'}.{parts[-1]}"
    if parts[0] == "head":
        return f"fc.{parts[-1]}"
    block = f"layer{int(parts[0][1]) - 1}.{parts[1].removeprefix('pathway0_res')}"
    if parts[2].startswith("branch1"):
        return f"{block}.downsample.{1 if parts[2].endswith('bn') else 0}.{parts[-1]}"
    return f"{block}.{IMAGE_KEYS[parts[3][0]][parts[3].endswith('bn')]}.{parts[-1]}"


def image_resnet() -> dict[str, Tensor]:
    """A random ResNet-50 with torchvision's keys and shapes."""
    torch.manual_seed(1)
    with torch.device("meta"):
        state = build_model("c2d_r50", num_classes=1000).state_dict()
    out = {}
    for key, value in state.items():
        shape = value.shape if value.ndim < 5 else (*value.shape[:2], *value.shape[3:])
        drawn = torch.rand(shape) + 0.5 if value.ndim < 2 else torch.randn(shape) * 0.05
        out[image_name(key)] = torch.tensor(7) if "num_batches" in key else drawn
    return out
