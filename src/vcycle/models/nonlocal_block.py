"""Non-local block: self-attention over all positions of a clip, inside a ConvNet.

In: (B, C, T, H, W). Out: the same shape. Wang et al., "Non-local neural networks", CVPR 2018. The
multigrid paper's I3D-NL has five, of the dot-product kind (section 4.4).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KINDS = ("dot_product", "softmax")


class NonLocalBlock(nn.Module):
    """x + norm(out(attention(theta(x), phi(x'), g(x')))), with x' = x pooled by 2 in space.

    ``kind`` is "softmax" (scaled by 1 / sqrt(C / 2), as in the released models) or "dot_product"
    (divided by the number of keys, as in the paper). Raises ValueError if it is another.
    """

    def __init__(self, channels: int, *, kind: str) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"nonlocal_kind {kind!r}: choose one of {', '.join(KINDS)}")
        self.kind = kind
        inner = channels // 2
        self.conv_theta = nn.Conv3d(channels, inner, 1)
        self.conv_phi = nn.Conv3d(channels, inner, 1)
        self.conv_g = nn.Conv3d(channels, inner, 1)
        self.conv_out = nn.Conv3d(inner, channels, 1)
        self.bn = nn.BatchNorm3d(channels)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.conv_theta(x).flatten(2)  # (B, C / 2, queries)
        pooled = F.max_pool3d(_two_or_more(x), (1, 2, 2))  # (B, C, T, H / 2, W / 2)
        phi = self.conv_phi(pooled).flatten(2)  # (B, C / 2, keys)
        g = self.conv_g(pooled).flatten(2)  # (B, C / 2, keys)
        affinity = torch.bmm(theta.transpose(1, 2), phi)  # (B, queries, keys)
        if self.kind == "softmax":
            affinity = (affinity * theta.shape[1] ** -0.5).softmax(2)
        else:
            affinity = affinity / affinity.shape[2]
        y = torch.bmm(g, affinity.transpose(1, 2))  # (B, C / 2, queries)
        y = y.view(*y.shape[:2], *x.shape[2:])  # (B, C / 2, T, H, W)
        out: Tensor = x + self.bn(self.conv_out(y))
        return out


def _two_or_more(x: Tensor) -> Tensor:
    """With a side of one pixel padded to two, so that pooling by 2 keeps it.

    In an exported graph always, as its sizes are not known.
    """
    missing = [1 // side for side in x.shape[3:]]
    sides: tuple[object, ...] = (*x.shape[3:],)
    if not any(isinstance(side, torch.SymInt) for side in sides) and not any(missing):
        return x
    return F.pad(x, (0, missing[1], 0, missing[0]), value=-torch.inf)
