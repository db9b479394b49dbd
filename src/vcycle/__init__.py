"""Multigrid training for video models: the same accuracy, several times faster.

The names below are the library. Those of the schedule need only the standard library; the others
are imported when they are first used, so that printing a plan does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle, ShapeRule, ShortCycle
from vcycle.schedule.multigrid import Anneal, Multigrid
from vcycle.schedule.plan import MiniBatch, Plan, Step
from vcycle.schedule.shape import Shape

if TYPE_CHECKING:
    from vcycle.data.batch import normalize
    from vcycle.data.dataset import ClipDataset
    from vcycle.data.grid import GridRange
    from vcycle.data.loader import eval_loader, train_loader
    from vcycle.data.manifest import Manifest
    from vcycle.data.sampler import PlanSampler
    from vcycle.evaluate.load_model import load_model
    from vcycle.evaluate.predict import predict
    from vcycle.models import (
        SubBatchNorm3d,
        build_model,
        convert_batch_norm,
        load_weights,
        precise_bn,
        set_norm_group,
    )

_MODULES = {
    "ClipDataset": "vcycle.data.dataset",
    "GridRange": "vcycle.data.grid",
    "Manifest": "vcycle.data.manifest",
    "PlanSampler": "vcycle.data.sampler",
    "SubBatchNorm3d": "vcycle.models",
    "build_model": "vcycle.models",
    "convert_batch_norm": "vcycle.models",
    "eval_loader": "vcycle.data.loader",
    "load_model": "vcycle.evaluate.load_model",
    "load_weights": "vcycle.models",
    "normalize": "vcycle.data.batch",
    "precise_bn": "vcycle.models",
    "predict": "vcycle.evaluate.predict",
    "set_norm_group": "vcycle.models",
    "train_loader": "vcycle.data.loader",
}

__all__ = [
    "Anneal",
    "Baseline",
    "ClipDataset",
    "GridRange",
    "LearningRate",
    "LongCycle",
    "Manifest",
    "MiniBatch",
    "Multigrid",
    "Plan",
    "PlanSampler",
    "Shape",
    "ShapeRule",
    "ShortCycle",
    "Step",
    "SubBatchNorm3d",
    "build_model",
    "convert_batch_norm",
    "eval_loader",
    "load_model",
    "load_weights",
    "normalize",
    "precise_bn",
    "predict",
    "set_norm_group",
    "train_loader",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vcycle")
    if name not in _MODULES:
        raise AttributeError(f"module 'vcycle' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
