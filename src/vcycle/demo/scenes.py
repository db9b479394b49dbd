"""The demo's scenes: what is in a generated video, and its frames.

A seed and an index go in; a ``Scene`` comes out, and, with a label, (H, W, 3) uint8 RGB frames.

A class is a pair (what, how), all twelve pairs, and two of its parts need more than a coarse grid:

- Rings *flicker*, dim in every other frame, or are *steady*, always dim or always bright. Every
  second frame of one is every second frame of the other.
- Shapes *rise*, *fall*, or *return*: up and down, turning before they have crossed the frame.
  Between two turns a shape that returns is one that rises or falls, and no single frame tells any
  motion from another.

Everything else (colours, background, distractors, size, speed, camera shake, noise, frame rate,
frame size and length) says nothing about the class, and differs between the splits: base hues and
texture scales of train and val come from disjoint intervals. The noise on the background is of
every hue in both.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

WHATS = ("square", "cross", "steady ring", "flickering ring")
HOWS = ("rises", "falls", "returns")
CLASSES = tuple(f"{what} {how}" for what in WHATS for how in HOWS)
SPLITS = ("train", "val")

_FRAME_RATES = (12, 15, 18, 20)
_SHAKE_PIXELS = 4
_NOISE = 7
_DIM = 0.3
"""The light of a dim ring over that of a bright one."""

Frame = NDArray[Any]  # (H, W, 3) int16
Mask = NDArray[Any]  # (h, w) float32, 0 to 1
Painter = Callable[[Mask, Mask, float], tuple[Mask, NDArray[np.float32]]]
"""From (y, x) and a radius in pixels to how much of each pixel is covered, and its RGB."""


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
    across: float  # where the shape is from left to right
    start: float  # its height in the first frame, 0 (top) to 1
    speed: float  # heights of the frame a second
    turn_seconds: float  # between two turns of a shape that returns
    turn_phase: float  # turns before the first frame, 0 to 2
    starts_dim: bool  # of a ring
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
    return Scene(
        width=width,
        height=height,
        frame_rate=frame_rate,
        num_frames=round(frame_rate * rng.uniform(1.4, 2.4)),
        hue=_hue(rng, half),
        background_hue=_hue(rng, half),
        texture_scale=float(rng.uniform(2, 4) if half else rng.uniform(4, 9)),
        radius=float(rng.uniform(0.17, 0.24)),
        angle=float(rng.uniform(-0.3, 0.3)),
        across=float(rng.uniform(0.35, 0.65)),
        start=float(rng.random()),
        speed=float(rng.uniform(0.45, 0.8)),
        turn_seconds=float(rng.uniform(0.45, 0.6)),
        turn_phase=float(rng.uniform(0, 2)),
        starts_dim=bool(rng.random() < 0.5),
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
    short = min(scene.width, scene.height)
    background = _background(scene, rng)
    grain = _NOISE * rng.standard_normal((scene.height + 32, scene.width + 32, 1))
    grain = grain.astype(np.int16)
    shake = _shake(scene.num_frames, rng)
    drift = _Drift.draw(scene, rng)
    for k in range(scene.num_frames):
        dy, dx = shake[k] + _SHAKE_PIXELS
        ny, nx = rng.integers(0, 32, 2)
        frame = background[dy : dy + scene.height, dx : dx + scene.width]
        frame = frame + grain[ny : ny + scene.height, nx : nx + scene.width]
        seconds = k / scene.frame_rate
        drift.paint(frame, seconds, offset=(dy, dx))
        y, x = _place(scene, how, seconds)
        _paint(frame, (y - dy, x - dx), scene.radius * short, _painter(scene, what, k))
        yield np.clip(frame, 0, 255).astype(np.uint8)


def _place(scene: Scene, how: str, seconds: float) -> tuple[float, float]:
    """Centre (y, x) in pixels of the background.

    It starts anywhere from top to bottom, and is as likely anywhere in every later frame. A shape
    that reaches an edge starts again at the other one: half of it is always in sight.
    """
    if how == "returns":
        turns = scene.turn_phase + seconds / scene.turn_seconds
        fallen = scene.turn_seconds * abs((turns + 1) % 2 - 1)
    else:
        fallen = seconds if how == "falls" else -seconds
    height, width = scene.height + 2 * _SHAKE_PIXELS, scene.width + 2 * _SHAKE_PIXELS
    return (scene.start + scene.speed * fallen) % 1.0 * height, scene.across * width


def _painter(scene: Scene, what: str, k: int) -> Painter:
    """The moving shape in frame ``k``."""
    colour = _colour(scene.hue, saturation=0.85, value=0.95)
    if what in ("square", "cross"):
        return partial(_polygon, colour, what, scene.angle)
    is_dim = (scene.starts_dim + k * (what == "flickering ring")) % 2 == 1
    return partial(_ring, colour * np.float32(_DIM if is_dim else 1))


def _polygon(
    colour: NDArray[np.float32], what: str, angle: float, y: Mask, x: Mask, radius: float
) -> tuple[Mask, NDArray[np.float32]]:
    c, s = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    u, v = np.abs(c * x + s * y), np.abs(c * y - s * x)
    if what == "square":
        return _cover(np.maximum(u, v) - 0.85 * radius), colour
    return _cover(np.maximum(np.minimum(u, v) - 0.26 * radius, np.maximum(u, v) - radius)), colour


def _ring(
    colour: NDArray[np.float32], y: Mask, x: Mask, radius: float
) -> tuple[Mask, NDArray[np.float32]]:
    return _cover(np.abs(np.hypot(y, x) - 0.78 * radius) - 0.22 * radius), colour


def _disc(
    colour: NDArray[np.float32], y: Mask, x: Mask, radius: float
) -> tuple[Mask, NDArray[np.float32]]:
    return _cover(np.hypot(y, x) - radius), colour


def _cover(distance: Mask) -> Mask:
    """How much of each pixel a shape covers, from its signed distance in pixels."""
    mask: Mask = np.clip(0.5 - distance, 0, 1).astype(np.float32)
    return mask


def _paint(
    frame: Frame,
    centre: tuple[float, float],
    radius: float,
    painter: Painter,
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
    mask, colour = painter(y, x, radius)
    patch = frame[y0:y1, x0:x1]
    patch += (mask[..., None] * (colour - patch)).astype(np.int16)


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
        _paint(frame, centre, float(rng.uniform(0.04, 0.09)) * short, partial(_disc, colour))
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
        _paint(frame, (y, x), self.radius, partial(_disc, self.colour))
