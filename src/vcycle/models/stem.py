"""The first convolution of a network, over three channels at every other pixel.

In: clips (B, 3, T, H, W). Out: what ``nn.Conv3d`` returns, (B, C, T, H / 2, W / 2). The matrix
units of a GPU take channels in eights, and of three none is used: that one layer then takes a
quarter of SlowFast's step. Blocks of 2 x 2 pixels are 12 channels at stride 1, and the same sums.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_CHANNELS = 16


class StemConv3d(nn.Conv3d):
    """``nn.Conv3d`` of stride (1, 2, 2), odd kernels k and padding k // 2, without bias.

    In half precision on a GPU, channels last, it is computed by ``conv_of_blocks``; parameters,
    state dict and, but for rounding, results are those of the plain layer.
    """

    def __init__(self, channels_in: int, channels_out: int, kernel: tuple[int, int, int]) -> None:
        frames, height, width = kernel
        super().__init__(
            channels_in,
            channels_out,
            kernel,
            stride=(1, 2, 2),
            padding=(frames // 2, height // 2, width // 2),
            bias=False,
        )

    def forward(self, input: Tensor) -> Tensor:
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        is_half = (half or input.dtype) in (torch.bfloat16, torch.float16)
        is_last = input.is_contiguous(memory_format=torch.channels_last_3d)
        if not (input.is_cuda and is_half and is_last):
            return super().forward(input)
        return conv_of_blocks(input.to(half or input.dtype), self.weight)


def conv_of_blocks(clips: Tensor, weight: Tensor) -> Tensor:
    """The convolution of ``StemConv3d`` at stride 1 over blocks of 2 x 2 pixels.

    In: clips (B, C, T, H, W) with C at most 4 and weight (O, C, t, h, w), h and w odd. Out:
    (B, O, T, ceil(H / 2), ceil(W / 2)).
    """
    sizes = [-(-size // 2) for size in clips.shape[3:]]  # of the result
    edges: list[int] = []
    for size, result, kernel in zip(clips.shape[3:], sizes, weight.shape[3:], strict=True):
        padded = 2 * (result + kernel // 2)
        edges = [kernel // 2, padded - size - kernel // 2, *edges]
    blocks = _blocks(F.pad(clips, edges))
    kernels = _blocks(F.pad(weight, (0, 1, 0, 1)))
    return F.conv3d(blocks, kernels.to(blocks.dtype), padding=(weight.shape[2] // 2, 0, 0))


def _blocks(x: Tensor) -> Tensor:
    """(N, C, T, H, W) -> (N, 16, T, H / 2, W / 2), channels last: the pixels of a block, zeros."""
    count, channels, frames, height, width = x.shape
    pixels = x.permute(0, 2, 3, 4, 1).reshape(count, frames, height // 2, 2, width // 2, 2, -1)
    blocks = pixels.transpose(3, 4).reshape(count, frames, height // 2, width // 2, 4 * channels)
    return F.pad(blocks, (0, _CHANNELS - 4 * channels)).permute(0, 4, 1, 2, 3)
