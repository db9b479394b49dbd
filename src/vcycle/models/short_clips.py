"""Convolve clips that have fewer frames than a kernel, on a CPU.

In: a model with ``nn.Conv3d`` layers. Out: the same model and state dict, which trains in less time
on the coarsest grids.

Of the products of two frames with a kernel of three, a third are with padding, and what torch has
on a CPU for the gradient by the weights takes longer there than on more frames. Such a clip is a
picture with the channels of all its frames: a 2-D convolution makes every frame of the result of
every frame of the clip, and there is no padding in time.

In bfloat16 torch 2.13 computes that gradient wrongly on CPUs with AVX512-BF16 and no AMX, by as
much as itself. What pictures cannot do is computed in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from vcycle.models.replace import replace_layers, traced_as_leaf


class ShortClipConv3d(nn.Conv3d):
    """``nn.Conv3d`` that, on a CPU, takes frames as channels if the kernel has more of them.

    In: (B, C, T, H, W) floating point; out: that of ``nn.Conv3d`` up to rounding, in its memory
    format. Strides and dilations in time, groups, padding given as text or not of
    zeros, and models that are compiled are left to ``nn.Conv3d``, in float32 where it would train
    in bfloat16; exported ones as they are. ``torch.fx`` traces it as a leaf.
    """

    def forward(self, input: Tensor) -> Tensor:
        traced: object = input
        if isinstance(traced, fx.Proxy):
            output: Tensor = traced_as_leaf(self, traced)
            return output
        padding = self.padding
        if isinstance(padding, str) or not self._is_short(input, padding[0]):
            if self._trains_wrongly(input):
                return self._in_float32(input)
            return super().forward(input)
        frames, kernel = input.shape[2], self.weight
        frames_out = frames + 2 * padding[0] - self.kernel_size[0] + 1
        # Frame i of the clip meets tap i - j + padding of frame j of the result, if there is one.
        taps = dict(enumerate(kernel.unbind(2)))  # (out, in, height, width) each
        none = torch.zeros_like(taps[0])
        rows = [
            torch.cat([taps.get(i - j + padding[0], none) for i in range(frames)], 1)
            for j in range(frames_out)
        ]
        bias = None if self.bias is None else self.bias.repeat(frames_out)
        picture = input.permute(0, 3, 4, 2, 1).flatten(3).permute(0, 3, 1, 2)  # (B, T * C, H, W)
        in_space = self.stride[1:], padding[1:], self.dilation[1:]
        out = F.conv2d(picture, torch.cat(rows), bias, *in_space)
        out = out.view(len(out), frames_out, -1, *out.shape[2:]).transpose(1, 2)
        last = 1 in (input.stride(1), kernel.stride(1))  # of either, as torch decides
        memory = torch.channels_last_3d if last else torch.contiguous_format
        return out.clone(memory_format=memory)

    def _trains_wrongly(self, clips: Tensor) -> bool:
        """Whether some CPUs would compute another gradient by the weights."""
        if _is_exporting() or clips.device.type != "cpu" or not torch.is_grad_enabled():
            return False  # an exported model is not to be bound to T
        is_mixed = torch.is_autocast_enabled("cpu") and clips.dtype != torch.float64
        dtype = torch.get_autocast_dtype("cpu") if is_mixed else clips.dtype
        return dtype == torch.bfloat16 and clips.shape[-3] < self.kernel_size[0]

    def _in_float32(self, clips: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        with torch.autocast("cpu", enabled=False):
            output: Tensor = self._conv_forward(clips.float(), self.weight.float(), bias)
        return output.bfloat16()

    def _is_short(self, clips: Tensor, padding: int) -> bool:
        return (
            not torch.compiler.is_compiling()  # first, lest an exported model be bound to T
            and clips.device.type == "cpu"
            and clips.ndim == 5
            and clips.numel() > 0
            and clips.shape[2] < self.kernel_size[0] <= clips.shape[2] + 2 * padding
            and self.padding_mode == "zeros"
            and (self.stride[0], self.dilation[0], self.groups) == (1, 1, 1)
        )


def _is_exporting() -> bool:
    # An older torch does not tell it from compiling.
    exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
    return bool(exporting())


def convert_convolutions(model: nn.Module) -> nn.Module:
    """Make every ``nn.Conv3d`` of ``model`` a ``ShortClipConv3d``, in place; return ``model``."""
    return replace_layers(model, {nn.Conv3d: ShortClipConv3d})
