"""Layers that C2D, Slow, I3D and SlowFast share.

In: a list of feature maps, one a pathway: one in ResNets, slow and fast in SlowFast. Out: the list
after the layer. Layer names are those of the authors' checkpoints
(``s2.pathway0_res0.branch2.a.weight``), so that their state dicts load as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcycle.models.nonlocal_block import NonLocalBlock

_BLOCKS_PER_STAGE = {26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


def check_clips(clips: Tensor) -> None:
    """Raise ValueError unless ``clips`` is (B, 3, T, H, W)."""
    if clips.ndim != 5 or clips.shape[1] != 3:
        raise ValueError(f"clips {tuple(clips.shape)}: give (B, 3, T, H, W)")


def blocks_per_stage(depth: int) -> tuple[int, ...]:
    """Number of blocks in res2 to res5. Raises ValueError if ``depth`` is not 26, 50 or 101."""
    if depth not in _BLOCKS_PER_STAGE:
        raise ValueError(f"depth {depth}: choose one of {sorted(_BLOCKS_PER_STAGE)}")
    return _BLOCKS_PER_STAGE[depth]


def stage_depth(name: str) -> int:
    """The stage of a parameter: 0 for the stem (s1) to 4 for res5, 5 for the classifier.

    Lateral connections (s1_fuse) belong to the stage before them.
    """
    return int(name[1]) - 1 if name.startswith("s") else 5


def temporal_kernels(pattern: Sequence[int], *, num_blocks: int, num_temporal: int) -> list[int]:
    """Temporal kernel size of the first convolution of each block.

    The first ``num_temporal`` blocks repeat ``pattern``; the others take 1.
    """
    return [pattern[i % len(pattern)] if i < num_temporal else 1 for i in range(num_blocks)]


class StemPathway(nn.Module):
    """A (frames, 7, 7) convolution and max pooling, each with stride 2 in space."""

    def __init__(self, width: int, *, frames: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(
            3, width, (frames, 7, 7), stride=(1, 2, 2), padding=(frames // 2, 3, 3), bias=False
        )
        self.bn = nn.BatchNorm3d(width)

    def forward(self, clips: Tensor) -> Tensor:
        x = F.relu(self.bn(self.conv(clips)), inplace=True)  # (B, C, T, H / 2, W / 2)
        return F.max_pool3d(x, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))  # H / 4, W / 4


class Bottleneck(nn.Module):
    """Convolutions of (frames, 1, 1), (1, 3, 3) with the stride, and (1, 1, 1)."""

    def __init__(
        self, channels_in: int, channels_out: int, *, inner: int, frames: int, stride: int
    ) -> None:
        super().__init__()
        self.a = nn.Conv3d(
            channels_in, inner, (frames, 1, 1), padding=(frames // 2, 0, 0), bias=False
        )
        self.a_bn = nn.BatchNorm3d(inner)
        self.b = nn.Conv3d(
            inner, inner, (1, 3, 3), stride=(1, stride, stride), padding=(0, 1, 1), bias=False
        )
        self.b_bn = nn.BatchNorm3d(inner)
        self.c = nn.Conv3d(inner, channels_out, 1, bias=False)
        self.c_bn = nn.BatchNorm3d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.a_bn(self.a(x)), inplace=True)
        x = F.relu(self.b_bn(self.b(x)), inplace=True)
        out: Tensor = self.c_bn(self.c(x))
        return out


class ResidualBlock(nn.Module):
    """A bottleneck plus its shortcut, which is projected if the shape changes."""

    def __init__(
        self, channels_in: int, channels_out: int, *, inner: int, frames: int, stride: int
    ) -> None:
        super().__init__()
        self.branch1: nn.Conv3d | None = None
        if channels_in != channels_out or stride != 1:
            self.branch1 = nn.Conv3d(
                channels_in, channels_out, 1, stride=(1, stride, stride), bias=False
            )
            self.branch1_bn = nn.BatchNorm3d(channels_out)
        self.branch2 = Bottleneck(
            channels_in, channels_out, inner=inner, frames=frames, stride=stride
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.branch1 is None else self.branch1_bn(self.branch1(x))
        return F.relu(shortcut + self.branch2(x), inplace=True)


class Pathways(nn.Module):
    """One sequence of layers a pathway, named ``pathway{p}_{layer}`` as in the checkpoints."""

    def __init__(self, layers: Sequence[Iterable[tuple[str, nn.Module]]]) -> None:
        super().__init__()
        self._names: list[list[str]] = []
        for p, pathway in enumerate(layers):
            self._names.append([])
            for name, layer in pathway:
                self.add_module(f"pathway{p}_{name}", layer)
                self._names[p].append(f"pathway{p}_{name}")

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        out = []
        for x, names in zip(xs, self._names, strict=True):
            for name in names:
                x = self.get_submodule(name)(x)
            out.append(x)
        return out


def stage_layers(
    channels_in: int,
    channels_out: int,
    *,
    frames: Sequence[int],
    stride: int,
    nonlocal_after: Sequence[int] = (),
    nonlocal_kind: str | None = None,
) -> list[tuple[str, nn.Module]]:
    """Names and layers of one residual stage of one pathway, in order.

    ``frames`` is the temporal kernel of each block. If ``nonlocal_kind`` is given, a non-local
    block follows each block whose index is in ``nonlocal_after``.
    """
    layers: list[tuple[str, nn.Module]] = []
    for i, kernel in enumerate(frames):
        block = ResidualBlock(
            channels_in if i == 0 else channels_out,
            channels_out,
            inner=channels_out // 4,
            frames=kernel,
            stride=stride if i == 0 else 1,
        )
        layers.append((f"res{i}", block))
        if nonlocal_kind is not None and i in nonlocal_after:
            layers.append((f"nonlocal{i}", NonLocalBlock(channels_out, kind=nonlocal_kind)))
    return layers


def halve_frames(x: Tensor) -> Tensor:
    """Max pooling over two frames, after res2 of C2D and I3D. A single frame is kept."""
    frames = min(2, x.shape[2])
    return F.max_pool3d(x, (frames, 1, 1), stride=(frames, 1, 1))  # (B, C, T / 2, H, W)


class Head(nn.Module):
    """Global average pooling of each pathway, dropout, and a linear classifier."""

    def __init__(self, features: int, *, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(features, num_classes)

    def forward(self, xs: list[Tensor]) -> Tensor:
        pooled = torch.cat([x.mean((2, 3, 4)) for x in xs], 1)  # (B, features)
        scores: Tensor = self.projection(self.dropout(pooled))  # (B, num_classes)
        return scores


def initialise(model: nn.Module) -> None:
    """Draw fresh weights as the authors do.

    Convolutions: He's normal distribution, fan out. Classifier: normal, standard deviation 0.01.
    Norms: 1, except for the last of a residual or non-local block: 0, so that each block starts as
    its shortcut.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
        if isinstance(module, nn.Conv3d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, Bottleneck):
            nn.init.zeros_(module.c_bn.weight)
        elif isinstance(module, NonLocalBlock):
            nn.init.zeros_(module.bn.weight)
