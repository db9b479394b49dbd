"""A small 3D ResNet for a demo on two cores.

In: clips of (B, 3, T, H, W), from about 4 x 16 x 16. Out: (B, num_classes) scores before softmax.
It is not in the paper. It has the same parts as the paper's models (residual blocks, batch norm,
global average pooling, a linear classifier), and trains on 8 clips of 8 x 64 x 64 in a fraction of
a second on one core.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from vcycle.models.blocks import check_clips, initialise


class BasicBlock(nn.Module):
    """Convolutions of (3, 3, 3) and (1, 3, 3), and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv3d(
            in_channels, out_channels, 3, stride=(1, stride, stride), padding=1, bias=False
        )
        self.a_bn = nn.BatchNorm3d(out_channels)
        self.b = nn.Conv3d(out_channels, out_channels, (1, 3, 3), padding=(0, 1, 1), bias=False)
        self.b_bn = nn.BatchNorm3d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv3d(
                in_channels, out_channels, 1, stride=(1, stride, stride), bias=False
            )
            self.shortcut = nn.Sequential(
                OrderedDict(conv=projection, bn=nn.BatchNorm3d(out_channels))
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.a_bn(self.a(x)))
        total: Tensor = self.b_bn(self.b(out)) + self.shortcut(x)
        return total.relu_()


class TinyResNet3d(nn.Module):
    """The demo's model; ``width`` channels in the stem, doubled in each of the last three blocks.

    Ten layers: a stem, four blocks of two convolutions, a classifier.
    In: (B, 3, T, H, W) floating point; out: (B, num_classes) scores before softmax. The stem and
    each of the last three blocks halve height and width; frames are kept up to the global pooling.
    Raises ValueError if ``width`` is below 1.
    """

    def __init__(self, *, num_classes: int, width: int = 8, dropout: float = 0.2) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width {width}: give at least 1 channel")
        widths = [width * 2**i for i in range(4)]
        self.stem = nn.Conv3d(3, width, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), bias=False)
        self.stem_bn = nn.BatchNorm3d(width)
        self.relu = nn.ReLU(inplace=True)
        in_widths = [width, *widths[:-1]]
        self.blocks = nn.Sequential(
            *(
                BasicBlock(w_in, w_out, stride=1 if i == 0 else 2)
                for i, (w_in, w_out) in enumerate(zip(in_widths, widths, strict=True))
            )
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(widths[-1], num_classes)
        initialise(self)
        for module in self.modules():
            if isinstance(module, BasicBlock):
                nn.init.zeros_(module.b_bn.weight)

    def forward(self, clips: Tensor) -> Tensor:
        check_clips(clips)
        x = self.relu(self.stem_bn(self.stem(clips)))  # (B, C, T, H / 2, W / 2)
        x = self.blocks(x)  # (B, C, T, H / 16, W / 16)
        x = x.mean((2, 3, 4))  # (B, C)
        scores: Tensor = self.head(self.dropout(x))  # (B, num_classes)
        return scores
