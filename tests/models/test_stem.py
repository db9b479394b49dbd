"""The convolution of blocks beside ``nn.Conv3d``, at every parity of the sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vcycle.models.stem import StemConv3d, conv_of_blocks


@pytest.mark.parametrize("kernel", [(1, 7, 7), (5, 7, 7), (3, 5, 5), (3, 3, 7), (1, 1, 1)])
@pytest.mark.parametrize("size", [(4, 16, 16), (3, 15, 14), (1, 8, 9), (2, 7, 7), (6, 1, 2)])
def test_blocks_give_the_same_result_and_gradients(
    kernel: tuple[int, int, int], size: tuple[int, int, int]
) -> None:
    torch.manual_seed(0)
    layer = StemConv3d(3, 4, kernel).double()
    clips = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    plain = nn.Conv3d.forward(layer, clips)
    blocks = conv_of_blocks(clips, layer.weight)
    torch.testing.assert_close(blocks, plain)
    gradient = torch.randn_like(plain)
    inputs = (clips, layer.weight)
    theirs = torch.autograd.grad(plain, inputs, gradient)
    torch.testing.assert_close(torch.autograd.grad(blocks, inputs, gradient), theirs)


def test_the_layer_is_a_plain_one_but_on_a_gpu() -> None:
    layer = StemConv3d(3, 4, (3, 5, 5))
    plain = nn.Conv3d(3, 4, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), bias=False)
    plain.load_state_dict(layer.state_dict())
    clips = torch.randn(1, 3, 2, 9, 9)
    assert torch.equal(layer(clips), plain(clips))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gpu_computes_blocks_in_half_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = StemConv3d(3, 8, (5, 7, 7)).cuda().to(memory_format=torch.channels_last_3d)
    clips = torch.randn(2, 3, 8, 32, 32, device="cuda")
    clips = clips.contiguous(memory_format=torch.channels_last_3d)
    plain = layer(clips)
    with torch.autocast("cuda", dtype=dtype):
        half = layer(clips)
    assert half.dtype == dtype
    assert half.is_contiguous(memory_format=torch.channels_last_3d)
    assert (half - plain).norm() < 0.01 * plain.norm()
