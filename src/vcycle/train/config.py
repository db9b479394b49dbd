"""The configuration of a run: one tree of frozen dataclasses, and nothing that needs torch.

In: a recipe's values, changed by flags or a YAML file. Out: all that decides a run, saved with it;
a run can be started again from what it saved. Nothing changes it while training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vcycle.schedule.baseline import Baseline
from vcycle.schedule.plan import Multigrid, Plan


@dataclass(frozen=True)
class Data:
    """Where clips come from and which grids may be drawn (paper, section 4).

    Args:
        manifest: the manifest's file, or the folder that holds it.
        stride: frames between samples at the baseline's shape.
        short_side: least and largest short side in pixels that a video is resized to before a
            crop of the baseline's size is cut.
        num_workers: processes that decode; 0 decodes in the main process.
    """

    manifest: str = ""
    stride: int = 2
    short_side: tuple[int, int] = (256, 340)
    num_workers: int = 2


@dataclass(frozen=True)
class Model:
    """Which network is built, and with which options of its own.

    Args:
        name: a name of ``vcycle models``, or ``package.module:function``.
        options: keyword arguments of the builder.
        weights: a checkpoint to start from.
    """

    name: str = "slowfast_r50"
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None


@dataclass(frozen=True)
class Optimizer:
    """SGD with Nesterov momentum as in the paper, or AdamW.

    Args:
        name: sgd or adamw.
        momentum: of SGD; beta 1 of AdamW.
        weight_decay: none is applied to norm weights.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4


@dataclass(frozen=True)
class Evaluation:
    """Validation at the baseline's shape, whatever the phase.

    Args:
        every_epochs: validate each time the run has seen this many epochs; it always does at the
            end.
        num_clips: clips a video, spread evenly over it.
        num_crops: 1 (centre) or 3 (along the longer side).
    """

    every_epochs: float = 10.0
    num_clips: int = 1
    num_crops: int = 1


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run."""

    recipe: str
    baseline: Baseline
    multigrid: Multigrid = Multigrid()
    data: Data = Data()
    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    seed: int = 0
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"

    def plan(self) -> Plan:
        """The schedule of this run."""
        return Plan(self.baseline, self.multigrid)
