"""The demo's scenes: what is in a generated video, and its frames.

A seed and an index go in; a ``Scene`` comes out, and, with a label, (H, W, 3) uint8 RGB frames.

A class is a pair (what, how): one of three shapes doing one of four motions, all twelve pairs, so
that every class has a twin that shares its look and another that shares its motion. ``rises`` and
``falls`` have the same frames in opposite order: no single frame tells them apart. Everything else
(colours, background, distractors, size, speed, camera shake, noise, frame rate, frame size and
length) says nothing about the class, and differs between the splits: base hues and texture scales
of train and val come from disjoint intervals. The noise on the background is of every hue in both.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

WHATS = ("square", "ring", "cross")
HOWS = ("slides", "rises", "falls", "grows")
CLASSES = tuple(f"{what} {how}" for what in WHATS for how in HOWS)
SPLITS = ("train", "val")

_FRAME_RATES = (12, 15, 18, 20)
_SHAKE_PIXELS = 4
_NOISE = 7

Frame = NDArray[Any]  # (H, W, 3) int16
Mask = NDArray[Any]  # (h, w) float32, 0 to 1


@dataclass(frozen=True)
class Scene:
    """All that is random about a video; lengths in shares of the short side, times in seconds."""

    width: int
    height: int
    frame_rate: int
    num_frames: int
    hue: float  # of the moving shape, 0 to 1
    background_hue: float
    texture_scale: float  # background grains per short side
    radius: float
    angle: float  # radians
    across: float  # where the shape is on the axis along which it does not move
    phase: float  # of its motion at the start, 0 to 1
    speed: float  # motions per second; negative if it slides to the left
    num_distractors: int
    pixel_seed: int


def draw_scene(*, seed: int, split: str, index: int) -> Scene:
    """The scene of video ``index`` of a split: a function of these three and nothing else."""
    half = SPLITS.index(split)
    rng = np.random.default_rng([seed, half, index])
    short = 2 * int(rng.integers(44, 57))  # 88 to 112 pixels
    long = 2 * round(short * rng.uniform(1.0, 1.4) / 2)
    width, height = (long, short) if rng.random() < 0.75 else (short, long)
    frame_rate = int(rng.choice(_FRAME_RATES))
    direction = rng.choice((-1.0, 1.0))
    return Scene(
        width=width,
        height=height,
        frame_rate=frame_rate,
        num_frames=round(frame_rate * rng.uniform(1.5, 3.0)),
        hue=_hue(rng, half),
        background_hue=_hue(rng, half),
        texture_scale=float(rng.uniform(2, 4) if half else rng.uniform(4, 9)),
        radius=float(rng.uniform(0.17, 0.24)),
        angle=float(rng.uniform(-0.3, 0.3)),
        across=float(rng.uniform(0.35, 0.65)),
        phase=float(rng.random()),
        speed=float(direction * rng.uniform(0.45, 0.8)),
        num_distractors=int(rng.integers(1, 4)),
        pixel_seed=int(rng.integers(2**62)),
    )


def _hue(rng: np.random.Generator, half: int) -> float:
    """Twelve arcs of the colour circle: the even ones are train's, the odd ones val's."""
    return float((2 * rng.integers(6) + half + rng.uniform(0.1, 0.9)) / 12)


def render(scene: Scene, label: int) -> Iterator[NDArray[np.uint8]]:
    """The video's frames, each (H, W, 3) RGB."""
    what, how = WHATS[label // len(HOWS)], HOWS[label % len(HOWS)]
    rng = np.random.default_rng(scene.pixel_seed)
    background = _background(scene, rng)
    grain = _NOISE * rng.standard_normal((scene.height + 32, scene.width + 32, 1))
    grain = grain.astype(np.int16)
    shake = _shake(scene.num_frames, rng)
    drift = _Drift.draw(scene, rng)
    colour = _colour(scene.hue, saturation=0.85, value=0.95)
    for k in range(scene.num_frames):
        dy, dx = shake[k] + _SHAKE_PIXELS
        ny, nx = rng.integers(0, 32, 2)
        frame = background[dy : dy + scene.height, dx : dx + scene.width]
        frame = frame + grain[ny : ny + scene.height, nx : nx + scene.width]
        seconds = k / scene.frame_rate
        drift.paint(frame, seconds, offset=(dy, dx))
        y, x, radius = _place(scene, how, seconds)
        _paint(frame, (y - dy, x - dx), radius, colour, partial(_mask, what, scene.angle))
        yield np.clip(frame, 0, 255).astype(np.uint8)


def _place(scene: Scene, how: str, seconds: float) -> tuple[float, float, float]:
    """Centre (y, x) in pixels of the background, and radius in pixels.

    A shape that reaches an edge starts again at the other one: half of it is always in sight.
    """
    short = min(scene.width, scene.height)
    radius = scene.radius * short
    height, width = scene.height + 2 * _SHAKE_PIXELS, scene.width + 2 * _SHAKE_PIXELS
    y, x = scene.across * height, scene.across * width
    progress = (scene.phase + seconds * scene.speed) % 1.0
    if how == "slides":
        x = progress * width
    elif how == "grows":
        growth = (scene.phase + seconds * abs(scene.speed)) % 1.0
        radius *= 0.4 + 1.2 * growth
    else:
        down = (scene.phase + seconds * abs(scene.speed)) % 1.0
        down = down if how == "falls" else 1.0 - down
        y = down * height
    return y, x, radius


def _mask(what: str, angle: float, y: Mask, x: Mask, radius: float) -> Mask:
    """How much of each pixel the shape covers, from its signed distance in pixels."""
    c, s = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    u, v = np.abs(c * x + s * y), np.abs(c * y - s * x)
    if what == "square":
        distance = np.maximum(u, v) - 0.85 * radius
    elif what == "ring":
        distance = np.abs(np.hypot(u, v) - 0.78 * radius) - 0.22 * radius
    elif what == "cross":
        distance = np.maximum(np.minimum(u, v) - 0.26 * radius, np.maximum(u, v) - radius)
    else:  # a distractor
        distance = np.hypot(u, v) - radius
    mask: Mask = np.clip(0.5 - distance, 0, 1).astype(np.float32)
    return mask


def _paint(
    frame: Frame,
    centre: tuple[float, float],
    radius: float,
    colour: NDArray[np.float32],
    mask_of: Callable[[Mask, Mask, float], Mask],
) -> None:
    """Blend a shape into the part of the frame that it covers."""
    reach = 1.5 * radius + 1
    y0, x0 = (max(int(c - reach), 0) for c in centre)
    y1 = min(int(centre[0] + reach) + 2, frame.shape[0])
    x1 = min(int(centre[1] + reach) + 2, frame.shape[1])
    if y0 >= y1 or x0 >= x1:
        return
    y = (np.arange(y0, y1, dtype=np.float32) - np.float32(centre[0]))[:, None]
    x = (np.arange(x0, x1, dtype=np.float32) - np.float32(centre[1]))[None, :]
    mask = mask_of(y, x, radius)[..., None]
    patch = frame[y0:y1, x0:x1]
    patch += (mask * (colour - patch)).astype(np.int16)


def _background(scene: Scene, rng: np.random.Generator) -> Frame:
    """A smooth coloured texture with static discs on it, larger than a frame by the shake."""
    height, width = scene.height + 2 * _SHAKE_PIXELS, scene.width + 2 * _SHAKE_PIXELS
    short = min(height, width)
    coarse = rng.standard_normal(
        (
            round(scene.texture_scale * height / short) + 2,
            round(scene.texture_scale * width / short) + 2,
            3,
        )
    )
    rows = _interpolation(height, coarse.shape[0])
    columns = _interpolation(width, coarse.shape[1])
    texture = np.einsum("hy,yxc,wx->hwc", rows, coarse, columns, optimize=True)
    texture = _colour(scene.background_hue, saturation=0.4, value=0.5) + 30.0 * texture
    frame: Frame = np.clip(texture, 0, 255).astype(np.int16)
    for _ in range(scene.num_distractors):
        centre = (float(rng.uniform(0, height)), float(rng.uniform(0, width)))
        colour = _colour(_hue_near(scene, rng), saturation=0.7, value=rng.uniform(0.3, 0.9))
        _paint(
            frame, centre, float(rng.uniform(0.04, 0.09)) * short, colour, partial(_mask, "", 0.0)
        )
    return frame


def _interpolation(size: int, grains: int) -> NDArray[np.float64]:
    """(size, grains) weights that interpolate linearly from grains to pixels."""
    place = np.linspace(0, grains - 1, size)[:, None]
    weights: NDArray[np.float64] = np.clip(1 - np.abs(place - np.arange(grains)), 0, 1)
    return weights


def _hue_near(scene: Scene, rng: np.random.Generator) -> float:
    """A distractor is as likely to have the shape's hue as the background's."""
    return scene.hue if rng.random() < 0.5 else scene.background_hue


def _colour(hue: float, *, saturation: float, value: float) -> NDArray[np.float32]:
    return 255 * np.asarray(colorsys.hsv_to_rgb(hue, saturation, value), np.float32)


def _shake(num_frames: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(num_frames, 2) pixels: a random walk that is pulled back to the middle."""
    steps = rng.standard_normal((num_frames, 2))
    place = np.zeros(2)
    walk = np.empty((num_frames, 2))
    for k in range(num_frames):
        place = 0.85 * place + steps[k]
        walk[k] = place
    return np.clip(np.rint(walk), -_SHAKE_PIXELS, _SHAKE_PIXELS).astype(np.int64)


@dataclass(frozen=True)
class _Drift:
    """A distractor that moves, slowly and in any direction."""

    y: float
    x: float
    velocity_y: float
    velocity_x: float
    radius: float
    colour: NDArray[np.float32]

    @classmethod
    def draw(cls, scene: Scene, rng: np.random.Generator) -> _Drift:
        short = min(scene.width, scene.height)
        angle = rng.uniform(0, 2 * np.pi)
        pixels_per_second = rng.uniform(0.1, 0.3) * short
        return cls(
            y=float(rng.uniform(0, scene.height)),
            x=float(rng.uniform(0, scene.width)),
            velocity_y=float(np.sin(angle) * pixels_per_second),
            velocity_x=float(np.cos(angle) * pixels_per_second),
            radius=float(rng.uniform(0.04, 0.08)) * short,
            colour=_colour(_hue_near(scene, rng), saturation=0.7, value=0.8),
        )

    def paint(self, frame: Frame, seconds: float, *, offset: tuple[int, int]) -> None:
        y = self.y + self.velocity_y * seconds - offset[0]
        x = self.x + self.velocity_x * seconds - offset[1]
        _paint(frame, (y, x), self.radius, self.colour, partial(_mask, "", 0.0))
