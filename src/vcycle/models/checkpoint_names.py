"""Map layer names of other projects to the authors' names.

In: keys of a state dict from torchvision, timm or PyTorchVideo. Out: for each key its name in our
models (``s2.pathway0_res0.branch2.a.weight``), or None if they have no such layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

IMAGE_LAYERS = {
    "conv1": "branch2.a",
    "bn1": "branch2.a_bn",
    "conv2": "branch2.b",
    "bn2": "branch2.b_bn",
    "conv3": "branch2.c",
    "bn3": "branch2.c_bn",
    "downsample.0": "branch1",
    "downsample.1": "branch1_bn",
}
"""Layers of a bottleneck in torchvision's and timm's ResNets."""

VIDEO_LAYERS = {
    "branch1_conv": "branch1",
    "branch1_norm": "branch1_bn",
    "branch2.conv_a": "branch2.a",
    "branch2.norm_a": "branch2.a_bn",
    "branch2.conv_b": "branch2.b",
    "branch2.norm_b": "branch2.b_bn",
    "branch2.conv_c": "branch2.c",
    "branch2.norm_c": "branch2.c_bn",
}
"""Layers of a bottleneck in PyTorchVideo."""


def from_image_resnet(keys: Iterable[str]) -> dict[str, str | None]:
    """Map the keys of a 2D ResNet of torchvision or timm; ``fc`` is the classifier."""
    return {key: _from_image_key(key) for key in keys}


def _from_image_key(key: str) -> str | None:
    layer, _, kind = key.rpartition(".")
    if layer in ("conv1", "bn1"):
        return f"s1.pathway0_stem.{layer[:-1]}.{kind}"
    if layer == "fc":
        return f"head.projection.{kind}"
    match = re.fullmatch(r"layer([1-4])\.(\d+)\.(.+)", layer)
    if match is None or match[3] not in IMAGE_LAYERS:
        return None
    return f"s{int(match[1]) + 1}.pathway0_res{match[2]}.{IMAGE_LAYERS[match[3]]}.{kind}"


def from_pytorchvideo(keys: Iterable[str]) -> dict[str, str | None]:
    """Map the keys of PyTorchVideo's hub models: slow, c2d, i3d and slowfast of any depth."""
    keys = list(keys)
    residual = {int(m[1]) for k in keys if (m := re.match(r"blocks\.(\d{1,3})\..*res_blocks\.", k))}
    # Pooling layers count as blocks too, so stages are numbered by order.
    stages = {0: 1} | {block: 2 + i for i, block in enumerate(sorted(residual))}
    return {key: _from_video_key(key, stages) for key in keys}


def _from_video_key(key: str, stages: dict[int, int]) -> str | None:
    match = re.fullmatch(r"blocks\.(\d{1,3})\.(?:multipathway_blocks\.(\d)\.)?(.+)\.(\w+)", key)
    if match is None:
        return None
    stage, pathway, layer, kind = stages.get(int(match[1])), match[2] or "0", match[3], match[4]
    if layer == "proj":
        return f"head.projection.{kind}"
    if stage is None:
        return None
    if layer in ("multipathway_fusion.conv_fast_to_slow", "multipathway_fusion.norm"):
        return f"s{stage}_fuse.{'bn' if layer.endswith('norm') else 'conv_f2s'}.{kind}"
    if stage == 1:
        part = {"conv": "conv", "norm": "bn"}.get(layer)
        return part and f"s1.pathway{pathway}_stem.{part}.{kind}"
    block = re.fullmatch(r"res_blocks\.(\d+)\.(.+)", layer)
    if block is None or block[2] not in VIDEO_LAYERS:
        return None
    return f"s{stage}.pathway{pathway}_res{block[1]}.{VIDEO_LAYERS[block[2]]}.{kind}"
