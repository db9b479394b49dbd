"""The rows of steps: kept while their losses are on the way to the host, then written together.

Reading a loss waits for the device, so the loop reads and writes several at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from vcycle.schedule.plan import Step
from vcycle.train.agreement import mean_losses
from vcycle.train.run_folder import RunFolder


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step: over all processes, and of this one's clips."""

    step: int
    mean: float
    own: float


class StepLog:
    """Rows for ``metrics.jsonl``. Leaving the context writes what is left."""

    def __init__(self, folder: RunFolder, *, fabric: Fabric) -> None:
        self._folder = folder
        self._fabric = fabric
        self._rows: list[dict[str, Any]] = []
        self._losses: list[Tensor] = []
        self._gradient_norms: list[Tensor] = []

    def add(
        self,
        step: Step,
        loss: Tensor,
        *,
        seconds: float,
        step_seconds: float,
        waited: float,
        left: float,
        gradient_norm: Tensor | None = None,
    ) -> None:
        """Keep a step's row until the next flush; ``loss`` is a scalar on any device.

        So is ``gradient_norm``, of all processes; it is given at every step or at none. ``left``
        are the seconds that the rest of the run is predicted to take.
        """
        self._losses.append(loss)
        if gradient_norm is not None:
            self._gradient_norms.append(gradient_norm)
        self._rows.append(
            {
                "step": step.index,
                "phase": step.phase,
                "shape": str(step.shape),
                "token_share": step.token_share,
                "batch_size": step.batch_size,
                "learning_rate": step.learning_rate,
                "norm_group": step.norm_group,
                "clips_per_second": step.batch_size / step_seconds,
                "waiting_seconds": waited,
                "seconds": seconds,
                "seconds_left": left,
            }
        )

    def flush(self) -> list[StepLoss]:
        """Write the kept rows, losses averaged over the processes, and return the losses.

        All processes call this after the same steps. A loss that is not finite is null in the file.
        """
        if not self._losses:
            return []
        own = torch.stack(self._losses)
        return self._write(mean_losses(own, self._fabric).tolist(), own.tolist())

    def _write(self, losses: list[float], own: list[float]) -> list[StepLoss]:
        rows, self._rows, self._losses = self._rows, [], []
        written = [{**row, "loss": _finite(loss)} for row, loss in zip(rows, losses, strict=True)]
        if self._gradient_norms:
            norms = torch.stack(self._gradient_norms).tolist()
            self._gradient_norms = []
            for row, norm in zip(written, norms, strict=True):
                row["gradient_norm"] = _finite(norm)
        self._folder.add_steps(written)
        return [
            StepLoss(row["step"], mean, mine)
            for row, mean, mine in zip(rows, losses, own, strict=True)
        ]

    def __enter__(self) -> StepLog:
        return self

    def __exit__(self, *_: object) -> None:
        """Write the rows that an error left, with this process's losses: others may be gone."""
        if self._losses:
            own = torch.stack(self._losses).tolist()
            self._write(own, own)


def _finite(number: float) -> float | None:
    """What JSON can hold of a number."""
    return number if math.isfinite(number) else None
