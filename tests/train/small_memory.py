"""A device with little memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vcycle.models.tiny import TinyResNet3d


class _Check(torch.autograd.Function):
    """Calls ``check`` at the end of a backward pass, when every parameter has its gradient."""

    @staticmethod
    def forward(ctx: Any, clips: Tensor, check: Any) -> Tensor:
        ctx.check = check
        return clips.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.check()
        return grads[0], None


class SmallMemory:
    """A device on which training on more than ``most`` clips at once runs out of memory.

    It does so at the end of the backward pass: the norms have collected their statistics.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, after: Path | None) -> None:
        self.most, self.after, self.failures = most, after, 0
        whole = TinyResNet3d.forward

        def forward(model: TinyResNet3d, clips: Tensor) -> Tensor:
            if model.training and torch.is_grad_enabled():
                count = len(clips)
                if not clips.requires_grad:
                    clips = clips.detach().requires_grad_()
                clips = _Check.apply(clips, lambda: self.check(count))
            return whole(model, clips)

        monkeypatch.setattr(TinyResNet3d, "forward", forward)

    def check(self, count: int) -> None:
        is_on = self.after is None or self.after.exists()
        if is_on and count > self.most:
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
