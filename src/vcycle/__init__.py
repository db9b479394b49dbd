"""Multigrid training for video models: coarse clips first, fine ones to finish.

The names below are the library. Those of the schedule need only the standard library; the others
are imported when they are first used, so that printing a plan does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle, ShortCycle
from vcycle.schedule.multigrid import Anneal, Multigrid
from vcycle.schedule.norm_groups import check_norm_group
from vcycle.schedule.plan import MiniBatch, Plan, Step
from vcycle.schedule.shape import Shape, ShapeRule

if TYPE_CHECKING:
    from vcycle.config.augmentation import Augmentation as Augmentation
    from vcycle.data.batch import Batch as Batch, normalize as normalize
    from vcycle.data.clips_of import ClipsOf as ClipsOf
    from vcycle.data.collate import collate as collate
    from vcycle.data.dataset import Clip as Clip, ClipDataset as ClipDataset
    from vcycle.data.decode.kept import KeptFrames as KeptFrames
    from vcycle.data.decode.resample import crop_and_scale as crop_and_scale
    from vcycle.data.grid import GridRange as GridRange
    from vcycle.data.loaders import eval_loader as eval_loader, train_loader as train_loader
    from vcycle.data.manifest import Manifest as Manifest
    from vcycle.data.metadata import UnreadableVideo as UnreadableVideo, VideoInfo as VideoInfo
    from vcycle.data.request import ClipRequest as ClipRequest, StepPart as StepPart
    from vcycle.data.sampler import PlanSampler as PlanSampler, view_requests as view_requests
    from vcycle.data.to_shape import to_shape as to_shape
    from vcycle.evaluate.load_model import load_model as load_model
    from vcycle.evaluate.predict import predict as predict
    from vcycle.models import (
        SubBatchNorm3d as SubBatchNorm3d,
        TokenDrop as TokenDrop,
        build_model as build_model,
        check_model as check_model,
        commit_statistics as commit_statistics,
        convert_batch_norm as convert_batch_norm,
        convert_convolutions as convert_convolutions,
        convert_dropout as convert_dropout,
        defer_statistics as defer_statistics,
        freeze as freeze,
        load_weights as load_weights,
        parameter_groups as parameter_groups,
        precise_bn as precise_bn,
        set_dropout_seeds as set_dropout_seeds,
        set_norm_group as set_norm_group,
        set_token_share as set_token_share,
    )
    from vcycle.train.augment import augment as augment
    from vcycle.train.own_loop.apply_step import (
        apply_step as apply_step,
        check_finished as check_finished,
    )
    from vcycle.train.own_loop.plan_lr import PlanLR as PlanLR

_NAMES = {
    "vcycle.config.augmentation": "Augmentation",
    "vcycle.data.batch": "Batch normalize",
    "vcycle.data.clips_of": "ClipsOf",
    "vcycle.data.collate": "collate",
    "vcycle.data.dataset": "Clip ClipDataset",
    "vcycle.data.decode.kept": "KeptFrames",
    "vcycle.data.decode.resample": "crop_and_scale",
    "vcycle.data.grid": "GridRange",
    "vcycle.data.loaders": "eval_loader train_loader",
    "vcycle.data.manifest": "Manifest",
    "vcycle.data.metadata": "UnreadableVideo VideoInfo",
    "vcycle.data.request": "ClipRequest StepPart",
    "vcycle.data.sampler": "PlanSampler view_requests",
    "vcycle.data.to_shape": "to_shape",
    "vcycle.evaluate.load_model": "load_model",
    "vcycle.evaluate.predict": "predict",
    "vcycle.models": """
        SubBatchNorm3d TokenDrop build_model check_model commit_statistics convert_batch_norm
        convert_convolutions convert_dropout defer_statistics freeze load_weights
        parameter_groups precise_bn set_dropout_seeds set_norm_group set_token_share
    """,
    "vcycle.train.augment": "augment",
    "vcycle.train.own_loop.apply_step": "apply_step check_finished",
    "vcycle.train.own_loop.plan_lr": "PlanLR",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    *_MODULES,
    "Anneal",
    "Baseline",
    "LearningRate",
    "LongCycle",
    "MiniBatch",
    "Multigrid",
    "Plan",
    "Shape",
    "ShapeRule",
    "ShortCycle",
    "Step",
    "check_norm_group",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vcycle")
    if name not in _MODULES:
        raise AttributeError(f"module 'vcycle' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
