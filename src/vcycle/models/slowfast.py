"""SlowFast, the paper's default model: a wide pathway on few frames, a narrow one on all.

In: clips of (B, 3, T, H, W) at any shape; the model picks the slow pathway's frames. Out:
(B, num_classes) scores before softmax. Feichtenhofer et al., ICCV 2019; section 4 of the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcycle.models.blocks import (
    Head,
    Pathways,
    StemPathway,
    blocks_per_stage,
    check_clips,
    initialise,
    stage_depth,
    stage_layers,
    temporal_kernels,
)
from vcycle.models.resnet3d import NONLOCAL_AFTER
from vcycle.schedule.arguments import whole_number

PATTERNS = (((1,), (1,), (3,), (3,)), ((3,), (3,), (3,), (3,)))
"""Temporal kernels of res2 to res5: of the slow pathway, then of the fast one."""


def slow_frame_indices(num_frames: int, alpha: int) -> list[int]:
    """Frames of the slow pathway: every alpha-th on average, first and last included.

    This is the official code's ``linspace(0, T - 1, T / alpha)`` truncated to integers, in exact
    arithmetic. The two agree up to 112 frames; beyond, rounding in the official code sometimes
    picks the frame before. If alpha does not divide T, T / alpha is rounded up, which is the
    number of frames that the lateral convolutions return.
    """
    count = -(-num_frames // alpha)
    return [i * (num_frames - 1) // max(count - 1, 1) for i in range(count)]


class FastToSlow(nn.Module):
    """Lateral connection: concatenates strided fast features to the slow ones."""

    def __init__(self, fast_channels: int, *, alpha: int, kernel: int) -> None:
        super().__init__()
        self.conv_f2s = nn.Conv3d(
            fast_channels,
            2 * fast_channels,
            (kernel, 1, 1),
            stride=(alpha, 1, 1),
            padding=(kernel // 2, 0, 0),
            bias=False,
        )
        self.bn = nn.BatchNorm3d(2 * fast_channels)

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        slow, fast = xs
        lateral = F.relu(self.bn(self.conv_f2s(fast)), inplace=True)  # (B, 2 C, T / alpha, H, W)
        return [torch.cat([slow, lateral], 1), fast]


def _stage(
    stage: int,
    channels: tuple[int, int],
    outs: tuple[int, int],
    frames: list[list[int]],
    nonlocal_kind: str | None,
) -> Pathways:
    """One residual stage. The slow pathway has the lateral channels and the non-local blocks."""
    ins = (channels[0] + 2 * channels[1], channels[1])
    after = (NONLOCAL_AFTER.get(stage, ()), ())
    return Pathways(
        [
            stage_layers(
                ins[p],
                outs[p],
                frames=frames[p],
                stride=1 if stage == 2 else 2,
                nonlocal_after=after[p],
                nonlocal_kind=nonlocal_kind,
            )
            for p in (0, 1)
        ]
    )


class SlowFast(nn.Module):
    """SlowFast: the fast pathway has ``alpha`` times the frames, 1 / ``beta_inverse`` the channels.

    In: (B, 3, T, H, W) floating point; out: (B, num_classes) scores before softmax. ``depth`` is
    26, 50 or 101; the slow stem has ``width`` channels, and all layers are in proportion.
    ``fusion_kernel``, odd, is the temporal size of the lateral convolutions. In res4, the first
    ``temporal_blocks_res4`` blocks (slow, fast) have temporal kernels of 3; None: all.
    ``nonlocal_kind``, "dot_product" or "softmax", adds five non-local blocks to the slow pathway,
    two at depth 26.

    Raises ValueError if ``depth`` or ``nonlocal_kind`` is another, ``fusion_kernel`` is even,
    ``alpha`` is below 1, ``beta_inverse`` does not divide ``width``, or there are fewer blocks than
    ``temporal_blocks_res4``.
    """

    s2: Pathways
    s2_fuse: FastToSlow
    s3: Pathways
    s3_fuse: FastToSlow
    s4: Pathways
    s4_fuse: FastToSlow
    s5: Pathways

    def __init__(
        self,
        *,
        num_classes: int,
        depth: int = 50,
        width: int = 64,
        alpha: int = 4,
        beta_inverse: int = 8,
        fusion_kernel: int = 7,
        temporal_blocks_res4: tuple[int, int] | None = None,
        dropout: float = 0.5,
        nonlocal_kind: str | None = None,
    ) -> None:
        super().__init__()
        _check(alpha=alpha, width=width, beta_inverse=beta_inverse, fusion_kernel=fusion_kernel)
        self.alpha = alpha
        num_blocks = blocks_per_stage(depth)
        temporal_res4 = _temporal_blocks(temporal_blocks_res4, num_blocks=num_blocks[2])
        widths = (width, width // beta_inverse)
        self.s1 = Pathways(
            [[("stem", StemPathway(w, frames=f))] for w, f in zip(widths, (1, 5), strict=True)]
        )
        self.s1_fuse = FastToSlow(widths[1], alpha=alpha, kernel=fusion_kernel)
        channels = widths
        for i, blocks in enumerate(num_blocks):
            stage = i + 2
            outs = (4 * width * 2**i, 4 * width * 2**i // beta_inverse)
            temporal = temporal_res4 if stage == 4 else (blocks, blocks)
            frames = [
                temporal_kernels(PATTERNS[p][i], num_blocks=blocks, num_temporal=temporal[p])
                for p in (0, 1)
            ]
            self.add_module(f"s{stage}", _stage(stage, channels, outs, frames, nonlocal_kind))
            if stage < 5:
                self.add_module(
                    f"s{stage}_fuse", FastToSlow(outs[1], alpha=alpha, kernel=fusion_kernel)
                )
            channels = outs
        self.head = Head(sum(channels), num_classes=num_classes, dropout=dropout)
        initialise(self)

    layer_depth = staticmethod(stage_depth)

    def forward(self, clips: Tensor) -> Tensor:
        check_clips(clips)
        slow = _slow_frames(clips, self.alpha)  # (B, 3, T / alpha, H, W)
        xs = self.s1_fuse(self.s1([slow, clips]))
        xs = self.s2_fuse(self.s2(xs))
        xs = self.s3_fuse(self.s3(xs))
        xs = self.s4_fuse(self.s4(xs))
        scores: Tensor = self.head(self.s5(xs))  # (B, num_classes)
        return scores


def _slow_frames(clips: Tensor, alpha: int) -> Tensor:
    """The frames of ``slow_frame_indices``; of a graph that is exported they depend on its T."""
    num_frames: object = clips.shape[2]
    if isinstance(num_frames, torch.SymInt):
        last = num_frames - 1
        count = last // alpha + 1  # T / alpha rounded up
        # Of the clips, for a device that is named would be written into the graph.
        gaps = clips.new_full((), count - 1, dtype=torch.int64).clamp(min=1)
        numbers = clips.new_ones(count, dtype=torch.int64).cumsum(0) - 1
        return clips.index_select(2, numbers * last // gaps)
    # Stacked views need no index tensor, which would be copied to the device.
    frames = slow_frame_indices(clips.shape[2], alpha)
    return torch.stack([clips[:, :, i] for i in frames], 2)


def _check(*, alpha: int, width: int, beta_inverse: int, fusion_kernel: int) -> None:
    sizes = {"alpha": alpha, "width": width, "beta_inverse": beta_inverse}
    for name, size in {**sizes, "fusion_kernel": fusion_kernel}.items():
        whole_number(name, size)
    if width % beta_inverse:
        raise ValueError(f"beta_inverse {beta_inverse}: give a divisor of {width}, the width")
    if fusion_kernel % 2 == 0:
        raise ValueError(f"fusion_kernel {fusion_kernel}: give an odd number")


def _temporal_blocks(chosen: tuple[int, int] | None, *, num_blocks: int) -> tuple[int, int]:
    """Number of blocks of res4 with temporal kernels of 3, in the slow and the fast pathway."""
    temporal = chosen or (num_blocks, num_blocks)
    if len(temporal) != 2 or not all(0 <= number <= num_blocks for number in temporal):
        raise ValueError(f"temporal_blocks_res4 {temporal}: give two numbers up to {num_blocks}")
    return temporal
