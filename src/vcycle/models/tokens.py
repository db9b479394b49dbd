"""Training on some of a clip's tokens, drawn anew for every clip.

In: a model with a ``TokenDrop`` layer, the share of the tokens that a phase of the plan keeps, and
the seeds of the clips that it is about to see. Out: the same model and state dict, which trains on
fewer tokens and evaluates on all. Which tokens a clip keeps is a function of its seed, so it does
not change with the number of processes or after a resume.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vcycle.models.dropout import ClipKeys, hashed_words
from vcycle.schedule.shape import kept_tokens


class TokenDrop(ClipKeys):
    """In training, keeps a uniform sample of ``share`` of the tokens of every clip, in their order.

    In: (B, N, C) tokens with their positions added; out: (B, K, C), K at least one. It stands
    before the layers that are to do less. ``set_token_share`` sets the share, 1 until then, and
    ``set_dropout_seeds`` the clips' seeds; without seeds torch's generator draws.
    """

    share: float = 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        if not self.training or self.share == 1:
            return tokens
        count = kept_tokens(tokens.shape[1], self.share)
        places = self._ranks(tokens).topk(count, dim=1, largest=False).indices.sort(1).values
        return tokens.gather(1, places[:, :, None].expand(-1, -1, tokens.shape[2]))

    def _ranks(self, tokens: Tensor) -> Tensor:
        """(B, N) numbers of which the smallest are kept, no two of a clip alike."""
        clips, size = tokens.shape[:2]
        keys = self._keys
        if keys is None or clips % len(keys):
            return torch.rand((clips, size), device=tokens.device)
        words = hashed_words(keys.to(tokens.device), size)
        ranks = words * size + torch.arange(size, device=tokens.device)
        return ranks.repeat_interleave(clips // len(keys), 0)


def set_token_share(model: nn.Module, share: float) -> None:
    """Let ``model`` train on so many of its tokens. Raises ValueError if it cannot drop any."""
    layers = [module for module in model.modules() if isinstance(module, TokenDrop)]
    if share < 1 and not layers:
        raise ValueError(
            f"multigrid.long_cycle.tokens: a phase keeps {share:g} of the tokens, and the model "
            f"cannot drop any; give null, or a model with a layer vcycle.TokenDrop, such as "
            f"video_vit_tiny"
        )
    for layer in layers:
        layer.share = share
