"""A small video transformer: joint attention over tubelets, and no batch norm.

In: clips of (B, 3, T, H, W). Out: (B, num_classes) scores before softmax. It is not in the paper:
multigrid asks only for weights that are shared over time and space (section 3.1), which attention
has. Norms are layer norms, so norm groups do nothing.

Positions are a fixed function of the place in the clip, from 0 to 1 along each axis, and not of the
token's number. Coarse and fine grids sample the same extent at other distances, so a token in the
middle of a clip gets the same position on all of them; there is no table to interpolate, and none
that fits one grid better than another.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcycle.models.blocks import check_clips
from vcycle.models.tokens import TokenDrop
from vcycle.schedule.arguments import whole_number

_OCTAVES = 4
"""Of frequencies: from half a period along an axis to 8, which tells 16 tokens apart."""


class VideoTransformer(nn.Module):
    """A small transformer: ``depth`` pre-norm blocks, joint attention over tubelets, no batch norm.

    In: (B, 3, T, H, W) floating point; out: (B, num_classes) scores before softmax: the mean over
    all tokens goes into a linear classifier. A token has ``width`` channels, in ``heads`` heads,
    and is a tubelet of ``patch_frames`` x ``patch_side`` x ``patch_side`` pixels. A clip of other
    than whole tubelets is padded at its end with zeros, the mean pixel. In training it may keep a
    share of the tokens (``set_token_share``), drawn before the first block.

    Raises ValueError if ``width`` is no multiple of 16 and of ``heads``, ``depth`` is above 1000,
    or another option is below 1.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        width: int = 128,
        depth: int = 6,
        heads: int = 4,
        patch_frames: int = 2,
        patch_side: int = 16,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"width": width, "heads": heads, "depth": depth}
        sizes |= {"patch_frames": patch_frames, "patch_side": patch_side}
        for name, size in sizes.items():
            whole_number(name, size)
        if depth > 1000:
            raise ValueError(f"depth {depth}: give at most 1000")
        if width % 16 or width % heads:
            raise ValueError(f"width {width}: give a multiple of 16 and of {heads} heads")
        self.patch = (patch_frames, patch_side, patch_side)
        self.embedding = nn.Conv3d(3, width, self.patch, stride=self.patch)
        self.token_drop = TokenDrop()
        self.blocks = nn.Sequential(*(Block(width, heads=heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, num_classes)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv3d | nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.embedding.weight.flatten(1))

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that do not decay, as timm has it: biases; norms never do."""
        return {name for name, _ in self.named_parameters() if name.endswith("bias")}

    def forward(self, clips: Tensor) -> Tensor:
        check_clips(clips)
        x = self.embedding(_whole_tubelets(clips, self.patch))  # (B, C, t, h, w)
        places = positions(x.shape[2:], x.shape[1], device=x.device)
        x = x.flatten(2).transpose(1, 2)  # (B, t h w, C)
        # The type of the weights: under autocast the residual stream stays in float32.
        x = self.token_drop(x + places.to(self.embedding.weight.dtype))  # (B, tokens kept, C)
        x = self.norm(self.blocks(x)).mean(1)  # (B, C)
        scores: Tensor = self.head(self.dropout(x))  # (B, num_classes)
        return scores


class Block(nn.Module):
    """Attention among all tokens, then two linear layers with four times the channels."""

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.query_key_value(self.attention_norm(x))  # (B, N, 3 C)
        heads = qkv.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (3, B, h, N, C / h)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.mlp_norm(x))  # (B, N, C)
        return out


def positions(grid: torch.Size, width: int, *, device: torch.device) -> Tensor:
    """(t h w, width) sines and cosines of each token's place: a quarter of them of time.

    ``width`` is a multiple of 16. Places are the centres of tubelets, in shares of the clip.
    """
    channels = (width // 4, width * 3 // 8, width * 3 // 8)
    parts = []
    for axis, (count, size) in enumerate(zip(grid, channels, strict=True)):
        octaves = torch.linspace(0, _OCTAVES, size // 2, device=device)
        places = (torch.arange(count, device=device) + 0.5) / count
        angles = math.pi * places[:, None] * octaves.exp2()  # (count, size / 2)
        shape = [1, 1, 1, size]
        shape[axis] = count
        waves = torch.cat([angles.sin(), angles.cos()], 1).view(shape)
        parts.append(waves.expand(*grid, size))
    return torch.cat(parts, 3).flatten(0, 2)


def _whole_tubelets(clips: Tensor, patch: tuple[int, int, int]) -> Tensor:
    """Clips padded at their end; in an exported graph always, as its sizes are not known."""
    missing = [-size % part for size, part in zip(clips.shape[2:], patch, strict=True)]
    sizes: tuple[object, ...] = (*clips.shape[2:],)
    if not any(isinstance(size, torch.SymInt) for size in sizes) and not any(missing):
        return clips
    return F.pad(clips, (0, missing[2], 0, missing[1], 0, missing[0]))
