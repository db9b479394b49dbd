"""C2D, Slow and I3D: video ResNets that differ in which convolutions span frames.

In: clips of (B, 3, T, H, W) at any shape. Out: (B, num_classes) scores before softmax. The
multigrid paper trains I3D and its non-local extension I3D-NL in section 4.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from vcycle.models.blocks import (
    Head,
    Pathways,
    StemPathway,
    blocks_per_stage,
    check_clips,
    halve_frames,
    initialise,
    stage_depth,
    stage_layers,
    temporal_kernels,
)

NONLOCAL_AFTER = {3: (1, 3), 4: (1, 3, 5)}
"""The five non-local blocks follow these blocks of res3 and res4."""


class ResNet3d(nn.Module):
    """A stem, four residual stages (res2 to res5), global average pooling, a classifier.

    In: (B, 3, T, H, W) floating point; out: (B, num_classes) scores before softmax. Subclasses set
    the temporal kernels. ``depth`` is 26, 50 or 101. ``nonlocal_kind``, "dot_product" or "softmax",
    adds five non-local blocks, two at depth 26. ``pool_frames`` overrides the subclass's. Raises
    ValueError if ``depth`` or ``nonlocal_kind`` is another.
    """

    stem_frames: ClassVar[int]
    patterns: ClassVar[Sequence[Sequence[int]]]
    """Temporal kernels of the blocks of each stage, repeated."""
    pool_frames: bool = True
    """Whether to halve the number of frames after res2."""

    s2: Pathways
    s3: Pathways
    s4: Pathways
    s5: Pathways

    def __init__(
        self,
        *,
        num_classes: int,
        depth: int = 50,
        dropout: float = 0.5,
        nonlocal_kind: str | None = None,
        pool_frames: bool | None = None,
    ) -> None:
        super().__init__()
        num_blocks = blocks_per_stage(depth)
        if pool_frames is not None:
            self.pool_frames = pool_frames
        self.s1 = Pathways([[("stem", StemPathway(64, frames=self.stem_frames))]])
        channels = 64
        for i, (pattern, blocks) in enumerate(zip(self.patterns, num_blocks, strict=True)):
            stage, channels_out = i + 2, 256 * 2**i
            layers = stage_layers(
                channels,
                channels_out,
                frames=temporal_kernels(pattern, num_blocks=blocks, num_temporal=blocks),
                stride=1 if stage == 2 else 2,
                nonlocal_after=NONLOCAL_AFTER.get(stage, ()),
                nonlocal_kind=nonlocal_kind,
            )
            self.add_module(f"s{stage}", Pathways([layers]))
            channels = channels_out
        self.head = Head(channels, num_classes=num_classes, dropout=dropout)
        initialise(self)

    layer_depth = staticmethod(stage_depth)

    def forward(self, clips: Tensor) -> Tensor:
        check_clips(clips)
        xs = self.s1([clips])  # (B, 64, T, H / 4, W / 4)
        xs = self.s2(xs)  # (B, 256, T, H / 4, W / 4)
        if self.pool_frames:
            xs = [halve_frames(x) for x in xs]
        xs = self.s5(self.s4(self.s3(xs)))  # (B, 2048, T or T / 2, H / 32, W / 32)
        scores: Tensor = self.head(xs)
        return scores


class C2D(ResNet3d):
    """A 2D ResNet on every frame; frames are mixed by one max pooling and the global average."""

    stem_frames = 1
    patterns = ((1,), (1,), (1,), (1,))


class Slow(ResNet3d):
    """SlowFast's slow pathway alone: temporal kernels of 3 in every block of res4 and res5."""

    stem_frames = 1
    patterns = ((1,), (1,), (3,), (3,))
    pool_frames = False


class I3D(ResNet3d):
    """The inflated ResNet: temporal kernels of 5 in the stem, of 3 in res2 and every other block.

    ``nonlocal_kind`` "dot_product" gives the paper's I3D-NL, "softmax" the released models.
    """

    stem_frames = 5
    patterns = ((3,), (3, 1), (3, 1), (1, 3))
