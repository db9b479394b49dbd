"""Each operation is Pillow's on one frame, the same on all frames, whatever the other clips are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from vcycle.train.randaugment import OPERATION_NAMES, OPERATIONS, randaugment

FILL = (115, 115, 115)


def noisy_clips(*size: int, seed: int = 0) -> Tensor:
    """(N, 3, T, H, W) uint8, a smooth image under noise, in a loader's memory format."""
    n, frames, height, width = size
    rng = np.random.default_rng(seed)
    ramp = np.linspace(30, 200, width)[None, :, None] * np.linspace(0.5, 1, height)[:, None, None]
    pixels = ramp + rng.normal(0, 12, (n, frames, height, width, 3)) + [0, 10, 30]
    return torch.from_numpy(pixels.clip(0, 255).astype(np.uint8)).permute(0, 4, 1, 2, 3)


def image_of(clip: Tensor) -> Image.Image:
    return Image.fromarray(clip[:, 0].permute(1, 2, 0).numpy())


def moved(matrix: Callable[[float, int, int], tuple[float, ...]]) -> Callable[..., Image.Image]:
    def move(image: Image.Image, s: float) -> Image.Image:
        coefficients = matrix(s, image.width, image.height)
        return image.transform(
            image.size,
            Image.Transform.AFFINE,
            coefficients,
            Image.Resampling.BILINEAR,
            fillcolor=FILL,
        )

    return move


def enhanced(kind: type) -> Callable[..., Image.Image]:
    return lambda image, s: kind(image).enhance(1 + 0.9 * s)


PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, s: image,
    "autocontrast": lambda image, s: ImageOps.autocontrast(image),
    "equalize": lambda image, s: ImageOps.equalize(image),
    "rotate": lambda image, s: image.rotate(30 * s, Image.Resampling.BILINEAR, fillcolor=FILL),
    "solarize": lambda image, s: ImageOps.solarize(image, 256 * (1 - abs(s))),
    "colour": enhanced(ImageEnhance.Color),
    "posterize": lambda image, s: ImageOps.posterize(image, 8 - round(4 * abs(s))),
    "contrast": enhanced(ImageEnhance.Contrast),
    "brightness": enhanced(ImageEnhance.Brightness),
    "sharpness": enhanced(ImageEnhance.Sharpness),
    "shear_x": moved(lambda s, w, h: (1, 0.3 * s, -0.3 * s * h / 2, 0, 1, 0)),
    "shear_y": moved(lambda s, w, h: (1, 0, 0, 0.3 * s, 1, -0.3 * s * w / 2)),
    "translate_x": moved(lambda s, w, h: (1, 0, 150 / 331 * s * w, 0, 1, 0)),
    "translate_y": moved(lambda s, w, h: (1, 0, 0, 0, 1, 150 / 331 * s * h)),
}
GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


@pytest.mark.parametrize("strength", [-0.7, 0.35, 1.0])
@pytest.mark.parametrize("name", OPERATION_NAMES)
def test_an_operation_is_that_of_pillow(name: str, strength: float) -> None:
    clips = noisy_clips(2, 1, 40, 56)
    ours = OPERATIONS[name](clips, torch.tensor([strength, strength / 2]))
    assert ours.dtype == torch.uint8
    for clip, result, s in zip(clips, ours, (strength, strength / 2), strict=True):
        theirs = np.asarray(PILLOW[name](image_of(clip), s), np.int32)
        difference = np.abs(result[:, 0].permute(1, 2, 0).numpy().astype(np.int32) - theirs)
        # Borders of a moved image differ: Pillow fills, bilinear sampling fades out.
        allowed = 0.06 if name in GEOMETRY else 0.0
        assert (difference > 1).mean() <= allowed
        assert np.median(difference) <= 1
        if name in ("equalize", "posterize", "solarize"):
            assert difference.max() == 0


def test_fourteen_operations() -> None:
    assert len(OPERATION_NAMES) == len(PILLOW) == 14


def test_magnitude_0_changes_only_by_statistics() -> None:
    clips = noisy_clips(1, 2, 16, 24)
    for name in set(OPERATION_NAMES) - {"autocontrast", "equalize"}:
        assert torch.equal(OPERATIONS[name](clips, torch.zeros(1)), clips), name


@pytest.mark.parametrize("name", OPERATION_NAMES)
def test_equal_frames_stay_equal(name: str) -> None:
    clips = noisy_clips(2, 1, 16, 24).expand(-1, -1, 3, -1, -1)
    out = OPERATIONS[name](clips, torch.tensor([0.8, -0.5]))
    assert torch.equal(out, out[:, :, :1].expand_as(out))


@pytest.mark.parametrize("name", ["autocontrast", "equalize", "contrast"])
def test_statistics_are_those_of_the_whole_clip(name: str) -> None:
    """The same as of one frame that holds all frames of the clip."""
    clips = noisy_clips(1, 4, 16, 24)
    clips[:, :, 1:] //= 2
    tall = clips.reshape(1, 3, 1, 64, 24)
    strength = torch.tensor([-0.6])
    out = OPERATIONS[name](clips, strength)
    assert torch.equal(out.reshape_as(tall), OPERATIONS[name](tall, strength))
    alone = OPERATIONS[name](clips[:, :, :1], strength)
    assert not torch.equal(alone, out[:, :, :1])


def test_a_clip_gets_the_same_in_any_batch() -> None:
    clips = noisy_clips(24, 2, 20, 28)
    seeds = np.arange(24, dtype=np.uint64) * np.uint64(7919)
    whole = randaugment(clips, seeds, num_ops=3, magnitude=9)
    assert whole.stride() == clips.stride()
    parts = [
        randaugment(clips[i : i + 3], seeds[i : i + 3], num_ops=3, magnitude=9)
        for i in range(0, 24, 3)
    ]
    assert torch.equal(torch.cat(parts), whole)
    changed = [not torch.equal(a, b) for a, b in zip(clips, whole, strict=True)]
    assert sum(changed) > 20
    alike = noisy_clips(1, 2, 20, 28).expand(24, -1, -1, -1, -1)
    out = randaugment(alike, seeds, num_ops=2, magnitude=9)
    assert len({clip.numpy().tobytes() for clip in out}) > 15


def test_operations_follow_one_another() -> None:
    clips = noisy_clips(1, 2, 20, 28)
    seeds = np.array([5], np.uint64)
    rng = np.random.default_rng(5)
    ops, signs = rng.integers(14, size=4), rng.choice((-1, 1), size=4)
    expected = clips
    for op, sign in zip(ops, signs, strict=True):
        expected = OPERATIONS[OPERATION_NAMES[op]](expected, torch.tensor([0.4 * float(sign)]))
    assert torch.equal(randaugment(clips, seeds, num_ops=4, magnitude=4), expected)


def test_wrong_clips_and_seeds() -> None:
    clips, seeds = noisy_clips(2, 1, 8, 8), np.zeros(2, np.uint64)
    with pytest.raises(ValueError, match=r"clips torch.float32 \(2, 3, 1, 8, 8\): give uint8"):
        randaugment(clips.float(), seeds, num_ops=1, magnitude=1)
    with pytest.raises(ValueError, match=r"seeds \(1,\): give one for each of 2 clips"):
        randaugment(clips, seeds[:1], num_ops=1, magnitude=1)
