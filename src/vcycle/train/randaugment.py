"""RandAugment on whole clips, on the device: what is drawn for a clip holds for all its frames.

In: clips, and a seed for each. Out: clips of the same shape and type. The fourteen operations and
their ranges are those of Cubuk et al., "RandAugment" (2020), which are AutoAugment's; statistics
that an operation needs, such as the mean brightness or a histogram, are those of the whole clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vcycle.data.batch import MEAN_PIXEL

_FILL = float(MEAN_PIXEL)
_GREY = (19595, 38470, 7471)
"""Of red, green and blue: 0.299, 0.587 and 0.114 of 2**16, as in Pillow."""


def randaugment(
    clips: Tensor, seeds: NDArray[np.uint64], *, num_ops: int, magnitude: float
) -> Tensor:
    """Apply ``num_ops`` operations, drawn with replacement, to each of (N, 3, T, H, W) uint8 clips.

    ``seeds``, (N,), decide which; a clip's result depends on its own seed and pixels alone.
    ``magnitude`` is from 0, at which geometry, brightness, contrast, colour, sharpness, posterize
    and solarize change nothing, to 10. Returns new clips in the same memory format.

    Raises ValueError if ``clips`` are not uint8 of that shape, or there is not a seed for each.
    """
    check_clips_and_seeds(clips, seeds)
    draws = np.stack([_draw(seed, num_ops) for seed in seeds.tolist()])  # (N, num_ops, 2)
    out = clips.clone()
    # Copies that do not block: the device may be at work on the step before.
    strengths = torch.from_numpy(magnitude / 10 * draws[:, :, 1]).float()
    strengths = strengths.to(clips.device, non_blocking=True)
    for place in range(num_ops):
        ops = draws[:, place, 0]
        for number in np.unique(ops):
            members = torch.from_numpy(np.flatnonzero(ops == number))
            chosen = members.to(clips.device, non_blocking=True)
            strength = strengths[chosen, place]
            out[chosen] = OPERATIONS[OPERATION_NAMES[int(number)]](out[chosen], strength)
    return out


def check_clips_and_seeds(clips: Tensor, seeds: NDArray[np.uint64]) -> None:
    """Raise ValueError unless clips are (N, 3, T, H, W) uint8 and there is a seed for each."""
    if clips.dtype != torch.uint8 or clips.ndim != 5 or clips.shape[1] != 3:
        raise ValueError(
            f"clips {clips.dtype} {tuple(clips.shape)}: give uint8 of shape (N, 3, T, H, W)"
        )
    if seeds.shape != clips.shape[:1]:
        raise ValueError(f"seeds {seeds.shape}: give one for each of {len(clips)} clips")


def _draw(seed: int, num_ops: int) -> NDArray[np.int64]:
    """(num_ops, 2) an operation and the sign of its strength, 1 or -1."""
    rng = np.random.default_rng(seed)
    ops = rng.integers(len(OPERATION_NAMES), size=num_ops)
    return np.stack([ops, rng.choice((-1, 1), size=num_ops)], 1)


# Each takes (n, 3, T, H, W) uint8 and (n,) strengths from -1 to 1, and returns such clips.


def _identity(clips: Tensor, _: Tensor) -> Tensor:
    return clips


def _shear_x(clips: Tensor, strength: Tensor) -> Tensor:
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _affine(clips, [one, 0.3 * strength, zero, one], [zero, zero])


def _shear_y(clips: Tensor, strength: Tensor) -> Tensor:
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _affine(clips, [one, zero, 0.3 * strength, one], [zero, zero])


def _translate_x(clips: Tensor, strength: Tensor) -> Tensor:
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _affine(clips, [one, zero, zero, one], [150 / 331 * strength, zero])


def _translate_y(clips: Tensor, strength: Tensor) -> Tensor:
    one, zero = torch.ones_like(strength), torch.zeros_like(strength)
    return _affine(clips, [one, zero, zero, one], [zero, 150 / 331 * strength])


def _rotate(clips: Tensor, strength: Tensor) -> Tensor:
    angle, zero = math.radians(30) * strength, torch.zeros_like(strength)
    cos, sin = angle.cos(), angle.sin()
    return _affine(clips, [cos, -sin, sin, cos], [zero, zero])


def _affine(clips: Tensor, matrix: list[Tensor], shift: list[Tensor]) -> Tensor:
    """Sample a clip at ``matrix`` times each pixel's place, from the centre, plus ``shift``.

    The matrix, by rows, is of x and y in pixels; the shift in shares of width and height.
    """
    n, _, _, height, width = clips.shape
    (xx, xy, yx, yy), (x, y) = matrix, shift
    theta = torch.stack([xx, xy * height / width, 2 * x, yx * width / height, yy, 2 * y], 1)
    images = clips.flatten(1, 2).float() - _FILL  # (n, 3 T, H, W)
    grid = F.affine_grid(theta.view(n, 2, 3), list(images.shape), align_corners=False)
    moved = F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)
    return _pixels(moved + _FILL).view(clips.shape)


def _brightness(clips: Tensor, strength: Tensor) -> Tensor:
    return _blend(torch.zeros((), device=clips.device), clips, strength)


def _colour(clips: Tensor, strength: Tensor) -> Tensor:
    return _blend(_grey(clips), clips, strength)


def _contrast(clips: Tensor, strength: Tensor) -> Tensor:
    return _blend(_grey(clips).mean((1, 2, 3, 4), keepdim=True).round(), clips, strength)


def _sharpness(clips: Tensor, strength: Tensor) -> Tensor:
    """Against a blur of 3 x 3 pixels; the outermost ones are not blurred."""
    kernel = torch.ones(1, 1, 3, 3, device=clips.device)
    kernel[..., 1, 1] = 5
    images = clips.float()
    blurred = images.clone()
    frames = images.flatten(0, 2)[:, None]  # (n 3 T, 1, H, W)
    inner = F.conv2d(frames, kernel / kernel.sum()).round_()
    blurred[..., 1:-1, 1:-1] = inner.view(*clips.shape[:3], *inner.shape[2:])
    return _blend(blurred, clips, strength)


def _blend(base: Tensor, clips: Tensor, strength: Tensor) -> Tensor:
    """Clips moved away from ``base``, or towards it: 0.1 to 1.9 times the distance."""
    factor = (1 + 0.9 * strength).view(-1, 1, 1, 1, 1)
    return _pixels(base + factor * (clips.float() - base))


def _grey(clips: Tensor) -> Tensor:
    """(n, 1, T, H, W) whole numbers, as float32."""
    red, green, blue = (clips[:, i : i + 1].int() * weight for i, weight in enumerate(_GREY))
    return ((red + green + blue + 2**15) >> 16).float()


def _pixels(values: Tensor) -> Tensor:
    return values.round_().clamp_(0, 255).to(torch.uint8)


def _posterize(clips: Tensor, strength: Tensor) -> Tensor:
    """Keep 8 bits at strength 0, 4 at 1."""
    dropped = (4 * strength.abs()).round().to(torch.uint8).view(-1, 1, 1, 1, 1)
    return (clips >> dropped) << dropped


def _solarize(clips: Tensor, strength: Tensor) -> Tensor:
    """Invert pixels from 256 on at strength 0, from 0 on at 1."""
    threshold = (256 * (1 - strength.abs())).view(-1, 1, 1, 1, 1)
    return torch.where(clips < threshold, clips, 255 - clips)


def _autocontrast(clips: Tensor, _: Tensor) -> Tensor:
    """Spread each channel over 0 to 255."""
    values = clips.to(torch.int32)
    low, high = values.amin((2, 3, 4), keepdim=True), values.amax((2, 3, 4), keepdim=True)
    spread = (values - low) * 255 // (high - low).clamp(min=1)
    return torch.where(high > low, spread, values).to(torch.uint8)


def _equalize(clips: Tensor, _: Tensor) -> Tensor:
    """Spread each channel so that its histogram is even, in integers, as Pillow does."""
    values = clips.flatten(0, 1).flatten(1).long()  # (n 3, T H W)
    counts = torch.zeros(len(values), 256, dtype=torch.int64, device=clips.device)
    counts.scatter_add_(1, values, torch.ones_like(values))
    brightest = counts.gather(1, values.amax(1, keepdim=True))
    step = (counts.sum(1, keepdim=True) - brightest) // 255
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=clips.device))
    return table.gather(1, values).to(torch.uint8).view(clips.shape)


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": _identity,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "rotate": _rotate,
    "solarize": _solarize,
    "colour": _colour,
    "posterize": _posterize,
    "contrast": _contrast,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
}
OPERATION_NAMES = tuple(OPERATIONS)
