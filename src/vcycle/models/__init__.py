"""Video models by name.

In: a name and the number of classes. Out: an ``nn.Module`` that takes clips of (B, 3, T, H, W) at
any shape and returns (B, num_classes) scores before softmax. Models know nothing of plans.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from torch import nn

from vcycle.models.batch_statistics import precise_bn
from vcycle.models.external import build_external, check_model
from vcycle.models.memory_format import memory_format
from vcycle.models.norm import (
    SubBatchNorm3d,
    check_norm_group,
    commit_statistics,
    convert_batch_norm,
    defer_statistics,
    set_norm_group,
)
from vcycle.models.optimizer_groups import parameter_groups
from vcycle.models.resnet3d import C2D, I3D, Slow
from vcycle.models.slowfast import SlowFast
from vcycle.models.tiny import TinyResNet3d
from vcycle.models.weights import LoadReport, load_weights

__all__ = [
    "MODELS",
    "LoadReport",
    "SubBatchNorm3d",
    "build_model",
    "check_model",
    "check_norm_group",
    "commit_statistics",
    "convert_batch_norm",
    "defer_statistics",
    "load_weights",
    "memory_format",
    "parameter_groups",
    "precise_bn",
    "set_norm_group",
]

R101_50 = (6, 6)
"""In R101-50-50, res4 has the temporal kernels of R50: none after the sixth block."""

MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet3d_tiny": TinyResNet3d,
    "slowfast_r50": SlowFast,
    "slowfast_r101": partial(SlowFast, depth=101, fusion_kernel=5),
    "i3d_r50": I3D,
    "i3d_r101": partial(I3D, depth=101),
    "i3d_nl_r50": partial(I3D, nonlocal_kind="dot_product"),
    "i3d_nl_r101": partial(I3D, depth=101, nonlocal_kind="dot_product"),
    "slow_r50": Slow,
    "slow_r101": partial(Slow, depth=101),
    "c2d_r50": C2D,
    "c2d_r101": partial(C2D, depth=101),
    # Names of the released models: slow frames x stride, and what differs from the above.
    "slowfast_r50_4x16": partial(SlowFast, alpha=8, fusion_kernel=5),
    "slowfast_r50_8x8": SlowFast,
    "slowfast_r50_16x8_ssv2": SlowFast,
    "slowfast_r50_16x8_charades": SlowFast,
    "slowfast_r50_16f_alpha2_paper": partial(SlowFast, alpha=2),
    "slowfast_nln_r50_8x8": partial(SlowFast, fusion_kernel=5, nonlocal_kind="dot_product"),
    "slowfast_r101_50_50_8x8": partial(
        SlowFast, depth=101, fusion_kernel=5, temporal_blocks_res4=R101_50
    ),
    "slowfast_r101_101_101_8x8": partial(SlowFast, depth=101, fusion_kernel=5),
    "i3d_r50_8x8": I3D,
    "i3d_r50_16f_paper": I3D,
    "i3d_r101_8x8": partial(I3D, depth=101),
    "i3d_nln_r50_8x8": partial(I3D, nonlocal_kind="softmax"),
    "i3d_nln_r50_16f_dot_paper": partial(I3D, nonlocal_kind="dot_product"),
    "i3d_nln_r101_8x8": partial(I3D, depth=101, nonlocal_kind="softmax"),
    "slow_r50_4x16": Slow,
    "slow_r50_8x8": Slow,
    "slow_nln_r50_8x8": partial(Slow, nonlocal_kind="dot_product"),
    "c2d_r50_8x8": C2D,
    "c2d_nln_r50_8x8": partial(C2D, nonlocal_kind="softmax"),
    "c2d_nopool_r50_8x8": partial(C2D, pool_frames=False),
}


def build_model(name: str, *, num_classes: int, **options: Any) -> nn.Module:
    """Build the model called ``name``, with fresh weights and ``nn.BatchNorm3d`` layers.

    ``name`` is in ``MODELS``, or is an import path ``package.module:function`` of your own builder.
    ``options`` are arguments of the builder, such as ``dropout``.

    Raises ValueError if the name is unknown (it names the nearest), ``num_classes`` is below 1, or
    the builder does not take an option.
    """
    if not isinstance(num_classes, int) or num_classes < 1:
        raise ValueError(f"num_classes {num_classes!r}: the model needs an integer of at least 1")
    if ":" in name:
        return build_external(name, num_classes=num_classes, **options)
    if name not in MODELS:
        nearest = get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "`vcycle models` lists them"
        raise ValueError(f"model {name!r}: no such model; {hint}")
    builder = MODELS[name]
    try:
        inspect.signature(builder).bind(num_classes=num_classes, **options)
    except TypeError as error:
        raise ValueError(f"model {name!r}: {error}; it takes {_options_text(builder)}") from error
    try:
        return builder(num_classes=num_classes, **options)
    except TypeError as error:
        raise ValueError(
            f"model {name!r}: an option has the wrong type ({error}); check model.options"
        ) from error


def _options_text(builder: Callable[..., nn.Module]) -> str:
    names = [name for name in inspect.signature(builder).parameters if name != "num_classes"]
    return ", ".join(names) or "no options"
