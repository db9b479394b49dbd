"""Video models and the layers that multigrid asks of them.

In: a name and the number of classes. Out: an ``nn.Module`` that takes clips of (B, 3, T, H, W) at
any shape and returns (B, num_classes) scores before softmax. Models know nothing of plans.

The names below are imported when they are first used: a plan reads ``vcycle.models.entries``
without waiting for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vcycle.models.batch_statistics import precise_bn as precise_bn
    from vcycle.models.build import build_model as build_model
    from vcycle.models.check import check_model as check_model
    from vcycle.models.deferred import (
        commit_statistics as commit_statistics,
        defer_statistics as defer_statistics,
        discard_statistics as discard_statistics,
        has_deferred_statistics as has_deferred_statistics,
        num_commits as num_commits,
    )
    from vcycle.models.dropout import (
        ClipKeys as ClipKeys,
        SampleDropout as SampleDropout,
        convert_dropout as convert_dropout,
        set_dropout_seeds as set_dropout_seeds,
    )
    from vcycle.models.frozen import freeze as freeze
    from vcycle.models.memory_layout import (
        memory_format as memory_format,
        to_channels_last as to_channels_last,
    )
    from vcycle.models.norm import (
        SubBatchNorm3d as SubBatchNorm3d,
        convert_batch_norm as convert_batch_norm,
        set_norm_group as set_norm_group,
    )
    from vcycle.models.optimizer_groups import parameter_groups as parameter_groups
    from vcycle.models.short_clips import convert_convolutions as convert_convolutions
    from vcycle.models.tokens import TokenDrop as TokenDrop, set_token_share as set_token_share
    from vcycle.models.weights import LoadReport as LoadReport, load_weights as load_weights

_MODULES = {
    "ClipKeys": "dropout",
    "LoadReport": "weights",
    "SampleDropout": "dropout",
    "SubBatchNorm3d": "norm",
    "TokenDrop": "tokens",
    "build_model": "build",
    "check_model": "check",
    "commit_statistics": "deferred",
    "convert_batch_norm": "norm",
    "convert_convolutions": "short_clips",
    "convert_dropout": "dropout",
    "defer_statistics": "deferred",
    "discard_statistics": "deferred",
    "freeze": "frozen",
    "has_deferred_statistics": "deferred",
    "load_weights": "weights",
    "memory_format": "memory_layout",
    "num_commits": "deferred",
    "parameter_groups": "optimizer_groups",
    "precise_bn": "batch_statistics",
    "set_dropout_seeds": "dropout",
    "set_norm_group": "norm",
    "set_token_share": "tokens",
    "to_channels_last": "memory_layout",
}

__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'vcycle.models' has no attribute {name!r}")
    return getattr(import_module(f"vcycle.models.{_MODULES[name]}"), name)
