"""The models by name: what each one is and which clips it takes, without importing torch.

In: a name. Out: its entry. ``build_model`` builds from it, ``vcycle plan`` takes the shape rule
and the multiply-adds from it, ``vcycle models`` lists it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from vcycle.schedule.arguments import nearest
from vcycle.schedule.messages import shortened
from vcycle.schedule.shape import Shape, ShapeRule, kept_tokens

Family = Literal["SlowFast", "I3D", "Slow", "C2D", "TinyResNet3d", "VideoTransformer"]

KINETICS_PAGE = "github.com/facebookresearch/pytorchvideo (docs/source/model_zoo.md)"
IMAGENET_PAGE = "pytorch.org/vision/stable/models.html"


@dataclass(frozen=True)
class ModelEntry:
    """One network.

    Args:
        name: as ``build_model`` and ``--model`` take it.
        family: the class that is built.
        arguments: of that class, besides ``num_classes``.
        aliases: other names of the same network: those of the released checkpoints (slow frames x
            stride) and of the paper's runs.
        kinetics_file: the file of PyTorchVideo's model zoo that holds its Kinetics-400 weights.
        rates: by an optimizer's name, the one that the study chose for the anneal on one of its
            sets, on 8 clips a step. A network that it did not try is trained with SGD.
    """

    name: str
    family: Family
    arguments: Mapping[str, Any] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    kinetics_file: str | None = None
    rates: Mapping[str, float] = field(default_factory=dict)

    def rule(self, options: Mapping[str, Any]) -> ShapeRule:
        """The clips that it takes, built with ``options``.

        SlowFast wants whole slow frames, a transformer whole tubelets.
        """
        if self.family == "VideoTransformer":
            sizes = {**self.arguments, **options}
            frames, side = sizes["patch_frames"], sizes["patch_side"]
            fit = all(isinstance(size, int) and size >= 1 for size in (frames, side))
            return ShapeRule(frame_multiple=frames, side_multiple=side) if fit else ShapeRule()
        alpha = {**self.arguments, **options}["alpha"] if self.family == "SlowFast" else None
        if isinstance(alpha, int) and alpha >= 1:
            return ShapeRule(frame_multiple=alpha, min_frames=alpha)
        pools = options.get("pool_frames", self.arguments.get("pool_frames"))
        halves_frames = self.family in ("I3D", "C2D") and pools is not False  # after res2
        return ShapeRule(min_frames=2 if halves_frames else 1)

    @property
    def image_resnet(self) -> str | None:
        """The ResNet whose ImageNet weights can be inflated into it."""
        depth = self.arguments.get("depth", 50)
        published = self.family not in ("TinyResNet3d", "VideoTransformer") and depth in (50, 101)
        return f"ResNet-{depth}" if published else None

    @property
    def drops_tokens(self) -> bool:
        """Whether it can train on a share of its tokens."""
        return self.family == "VideoTransformer"

    @property
    def multiply_adds(self) -> dict[Shape, int]:
        """Of one clip, forward, with 400 classes, at the shapes of the recipes."""
        return {Shape.parse(shape): count for shape, count in _counted().get(self.name, {}).items()}

    def num_tokens(self, shape: Shape, options: Mapping[str, Any]) -> int | None:
        """Of a clip of a transformer; None for other models."""
        sizes = self._sizes(options)
        return None if sizes is None else _tubelets(shape, sizes)

    def clip_multiply_adds(
        self, shape: Shape, token_share: float, options: Mapping[str, Any]
    ) -> int | None:
        """Of one clip that keeps so many of its tokens, forward, with 400 classes.

        Those of a transformer follow from its sizes; others are known at the shapes of the recipes,
        and unless ``options`` change the network.
        """
        if self.family == "VideoTransformer":
            sizes = self._sizes(options)
            return None if sizes is None else _transformer_multiply_adds(shape, token_share, sizes)
        return self.multiply_adds.get(shape) if options.keys() <= {"dropout"} else None

    def _sizes(self, options: Mapping[str, Any]) -> Mapping[str, int] | None:
        """Of a transformer with these options; None of other models, or if one is no size."""
        sizes = {**self.arguments, **options}
        whole = all(isinstance(sizes[name], int) and sizes[name] > 0 for name in self.arguments)
        return sizes if self.family == "VideoTransformer" and whole else None


def find_model(name: str) -> ModelEntry:
    """The entry of a name or alias. Raises ValueError, with the nearest name, if it is neither."""
    if name not in _BY_NAME:
        hint = nearest(name, _BY_NAME) or "; vcycle models lists them"
        raise ValueError(
            f"model {shortened(name, 60)}: no such model, and no package.module:function of your "
            f"own{hint}"
        )
    return _BY_NAME[name]


def _transformer_multiply_adds(shape: Shape, token_share: float, sizes: Mapping[str, Any]) -> int:
    """All tubelets are embedded; those kept go through linear layers and attend to each other."""
    frames, side, width = sizes["patch_frames"], sizes["patch_side"], sizes["width"]
    tubelets = _tubelets(shape, sizes)
    kept = kept_tokens(tubelets, token_share)
    block = 12 * kept * width**2 + 2 * kept**2 * width
    embedding = tubelets * 3 * frames * side**2 * width
    return int(embedding + sizes["depth"] * block + width * 400)


def _tubelets(shape: Shape, sizes: Mapping[str, Any]) -> int:
    frames, side = sizes["patch_frames"], sizes["patch_side"]
    counts = (shape.frames / frames, shape.height / side, shape.width / side)
    return math.prod(math.ceil(count) for count in counts)


@cache
def _counted() -> dict[str, dict[str, int]]:
    """What ``benchmarks/recipe_multiply_adds.py`` counted on the models themselves."""
    text = files("vcycle.models").joinpath("multiply_adds.json").read_text()
    counted: dict[str, dict[str, int]] = json.loads(text)
    return counted


def _slowfast(
    name: str,
    *aliases: str,
    alpha: int = 4,
    file: str | None = None,
    rates: Mapping[str, float] | None = None,
    **arguments: Any,
) -> ModelEntry:
    arguments = {"alpha": alpha, **arguments}
    return ModelEntry(name, "SlowFast", arguments, aliases, kinetics_file=file, rates=rates or {})


def _resnet(
    family: Family, name: str, *aliases: str, file: str | None = None, **arguments: Any
) -> ModelEntry:
    return ModelEntry(name, family, arguments, aliases, kinetics_file=file)


_R101_50 = (6, 6)
"""In R101-50-50, res4 has the temporal kernels of R50: none after the sixth block."""

MODELS = (
    ModelEntry("resnet3d_tiny", "TinyResNet3d", rates={"adamw": 0.012, "muon": 0.012, "sgd": 0.08}),
    _slowfast(
        "slowfast_tiny",
        rates={"adamw": 0.003},
        alpha=2,
        beta_inverse=4,
        depth=26,
        fusion_kernel=5,
        width=8,
    ),
    ModelEntry(
        "video_vit_tiny",
        "VideoTransformer",
        {"width": 128, "depth": 6, "patch_frames": 2, "patch_side": 16},
        rates={"adamw": 0.00025},
    ),
    _slowfast(
        "slowfast_r50",
        "slowfast_r50_8x8",
        "slowfast_r50_16x8_ssv2",
        "slowfast_r50_16x8_charades",
        file="SLOWFAST_8x8_R50.pyth",
    ),
    _slowfast("slowfast_r50_4x16", alpha=8, fusion_kernel=5),
    _slowfast("slowfast_r50_16f_alpha2_paper", alpha=2),
    _slowfast("slowfast_nln_r50_8x8", fusion_kernel=5, nonlocal_kind="dot_product"),
    _slowfast(
        "slowfast_r101",
        "slowfast_r101_101_101_8x8",
        depth=101,
        fusion_kernel=5,
        file="SLOWFAST_8x8_R101.pyth",
    ),
    _slowfast(
        "slowfast_r101_50_50_8x8",
        depth=101,
        fusion_kernel=5,
        temporal_blocks_res4=_R101_50,
        file="SLOWFAST_16x8_R101_50_50.pyth",
    ),
    _resnet("I3D", "i3d_r50", "i3d_r50_8x8", "i3d_r50_16f_paper", file="I3D_8x8_R50.pyth"),
    _resnet("I3D", "i3d_r101", "i3d_r101_8x8", depth=101),
    _resnet("I3D", "i3d_nl_r50", "i3d_nln_r50_16f_dot_paper", nonlocal_kind="dot_product"),
    _resnet("I3D", "i3d_nl_r101", depth=101, nonlocal_kind="dot_product"),
    _resnet("I3D", "i3d_nln_r50_8x8", nonlocal_kind="softmax"),
    _resnet("I3D", "i3d_nln_r101_8x8", depth=101, nonlocal_kind="softmax"),
    _resnet("Slow", "slow_r50", "slow_r50_4x16", "slow_r50_8x8", file="SLOW_8x8_R50.pyth"),
    _resnet("Slow", "slow_r101", depth=101),
    _resnet("Slow", "slow_nln_r50_8x8", nonlocal_kind="dot_product"),
    _resnet("C2D", "c2d_r50", "c2d_r50_8x8", file="C2D_8x8_R50.pyth"),
    _resnet("C2D", "c2d_r101", depth=101),
    _resnet("C2D", "c2d_nln_r50_8x8", nonlocal_kind="softmax"),
    _resnet("C2D", "c2d_nopool_r50_8x8", pool_frames=False),
)
"""Every network, once."""

_BY_NAME = {name: entry for entry in MODELS for name in (entry.name, *entry.aliases)}
