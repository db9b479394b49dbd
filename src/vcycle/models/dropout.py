"""Dropout whose masks belong to samples, not to batches.

In: a model with ``nn.Dropout`` layers, and at each step a seed for every clip that it is about to
see. Out: the same model and state dict, in which the mask of a clip is a function of its seed, the
layer and the place of a value. However a global batch is cut into processes and micro-batches, its
clips keep their masks; they are the same on a CPU and on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vcycle.models.replace import replace_layers

_WORD = 0xFFFFFFFF


class ClipKeys(nn.Module):
    """A layer whose draws are those of the clips' seeds: ``set_dropout_seeds`` finds it.

    They are forgotten in evaluation mode, and left out of copies.
    """

    _keys: Tensor | None = None
    """(S, 2) words of 32 bits as int64, of each clip in this layer."""

    def train(self, mode: bool = True) -> ClipKeys:
        if not mode:
            self._keys = None
        super().train(mode)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_keys"}


class SampleDropout(ClipKeys, nn.Dropout):
    """``nn.Dropout`` with one mask for each sample.

    In and out: (B, ...), clips first, one after the other; with S seeds, B a multiple of S: B / S
    rows of a clip follow each other. Without seeds (``set_dropout_seeds``), or if B is no multiple
    of S, it draws from torch's generator as the plain layer does. It is called once in a forward
    pass: a second call drops the same places.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        if self._keys is None or len(input) % len(self._keys) or not input.numel():
            return self._plain(input)
        shape = self._mask_shape(input)
        kept = _kept(self._keys.to(input.device), self.p, math.prod(shape)).view(shape)
        scale = kept.to(input.dtype).div_(max(1 - self.p, 2**-32))
        return input.mul_(scale) if self.inplace else input * scale

    def _mask_shape(self, input: Tensor) -> Sequence[int]:
        return input.shape

    def _plain(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, True, self.inplace)


class SampleChannelDropout(SampleDropout):
    """``nn.Dropout1d``, ``2d`` and ``3d``, which drop whole channels, likewise."""

    def _mask_shape(self, input: Tensor) -> Sequence[int]:
        return [*input.shape[:2], *(1,) * (input.ndim - 2)]

    def _plain(self, input: Tensor) -> Tensor:
        drop = torch.feature_dropout_ if self.inplace else torch.feature_dropout
        return drop(input, self.p, True)


BY_SAMPLE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Dropout: SampleDropout,
    **dict.fromkeys((nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), SampleChannelDropout),
}


def _kept(keys: Tensor, p: float, size: int) -> Tensor:
    """Which of ``size`` values stay, in equal parts for each key; each with probability 1 - p."""
    return hashed_words(keys, size // len(keys)) >= round(p * 2**32)


def hashed_words(keys: Tensor, size: int) -> Tensor:
    """(S, size) words of 32 bits as int64, of (S, 2) keys: a function of the key and the place.

    Multipliers and shifts are those of the 32-bit hash "lowbias32" by Chris Wellons.
    """
    # Factors above 2**31 are taken as negative, so that no product of words exceeds 63 bits.
    words = torch.arange(size, device=keys.device) ^ keys[:, :1]
    words = (words ^ (words >> 16)).mul_(0x7FEB352D).bitwise_and_(_WORD)
    words = words.bitwise_xor_(keys[:, 1:])
    words = (words ^ (words >> 15)).mul_(0x846CA68B - 2**32).bitwise_and_(_WORD)
    return words ^ (words >> 16)


def convert_dropout(model: nn.Module) -> nn.Module:
    """Make every ``nn.Dropout``, ``Dropout1d``, ``2d`` and ``3d`` one per sample, in place.

    Returns ``model``. Dropout that a model computes by functions (``F.dropout``, attention with
    ``dropout_p``, stochastic depth) is not replaced, and neither are subclasses.
    """
    return replace_layers(model, BY_SAMPLE)


def set_dropout_seeds(model: nn.Module, seeds: NDArray[np.uint64] | None) -> None:
    """Give the clips of the next forward pass their seeds, (B,); None: draw as plain layers do.

    ``TokenDrop`` layers draw the tokens that they keep from them too. Each clip of a run needs a
    seed of its own, drawn for its position in the run and not for its place in a batch. It is cheap
    enough to call before every forward pass. A batch's seeds stay until the next are set, or the
    model is in evaluation mode.
    """
    layers = [module for module in model.modules() if isinstance(module, ClipKeys)]
    if seeds is None or not layers:
        for layer in layers:
            layer._keys = None
        return
    device = next((parameter.device for parameter in model.parameters()), None)
    # One copy to the device for all layers, which does not wait for it: (layers, B, 2)
    keys = torch.from_numpy(np.stack([_layer_keys(seeds, n) for n in range(len(layers))]))
    for layer, of_layer in zip(layers, keys.to(device, non_blocking=True), strict=True):
        layer._keys = of_layer


def _layer_keys(seeds: NDArray[np.uint64], number: int) -> NDArray[np.int64]:
    """(B, 2) two words of 32 bits: the generator splitmix64, ``number`` places after each seed."""
    words = seeds + np.uint64((number + 1) * 0x9E3779B97F4A7C15 % 2**64)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return np.stack([words & np.uint64(_WORD), words >> np.uint64(32)], 1).astype(np.int64)
