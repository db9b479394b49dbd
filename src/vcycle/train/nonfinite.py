"""A loss that is not finite: of which step and clips, and how to leave it without a trace.

In: a step, and whose loss it was. Out: a line of ``nonfinite.jsonl`` and an error that names the
clips; for a step that is skipped, the network as it was before.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from vcycle.data.request import StepPart
from vcycle.data.sampler import clip_requests
from vcycle.models import discard_statistics
from vcycle.train.agreement import gathered
from vcycle.train.start import Run
from vcycle.train.step_log import StepLoss

_MOST_NAMED = 8
_MOST_IN_A_ROW = 20


class NonFinite:
    """What a run does about losses that are not finite, as ``config.nonfinite`` says."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._in_a_row = 0

    def account(self, losses: list[StepLoss]) -> list[str]:
        """Write the steps without a finite loss; a line for people for each that was skipped.

        All processes call this with the same steps. Raises ValueError for the first such step,
        unless they are skipped; then if very many follow each other.
        """
        lines = []
        for loss in losses:
            if math.isfinite(loss.mean):
                self._in_a_row = 0
                continue
            self._in_a_row += 1
            row = self._row(loss)
            self._run.folder.add_nonfinite(row)
            named = ", ".join(row["clips"][:_MOST_NAMED])
            more = len(row["clips"]) - _MOST_NAMED
            what = (
                f"step {row['step']}: the loss is {loss.mean} at rate {row['learning_rate']:g}, of "
                f"{row['batch_size']} clips of {row['shape']}, among them {named}"
                + (f" and {more} more (nonfinite.jsonl)" if more > 0 else "")
            )
            if self._run.config.nonfinite == "stop":
                raise ValueError(
                    f"{what}; use a smaller --baseline.learning_rate.base, a longer warm-up, full "
                    f"precision if it is mixed, or --nonfinite skip"
                )
            if self._in_a_row == _MOST_IN_A_ROW:
                raise ValueError(
                    f"{what}; nor was that of any of the {_MOST_IN_A_ROW - 1} steps before: use a "
                    f"smaller --baseline.learning_rate.base"
                )
            lines.append(f"{what}; skipped")
        return lines

    def _row(self, loss: StepLoss) -> dict[str, Any]:
        """The step, with the clips of the processes whose part of the loss was not finite."""
        run, step = self._run, self._run.plan[loss.step]
        is_finite = gathered(math.isfinite(loss.own), run.fabric)
        parts = [
            StepPart(
                step,
                run.plan.baseline,
                micro_batch=micro,
                micro_batches=run.config.micro_batches,
                rank=rank,
                world_size=run.fabric.world_size,
                seed=run.config.seed,
            )
            for micro in range(run.config.micro_batches)
            for rank, fine in enumerate(is_finite)
            if not fine
        ]
        requests = [
            request
            for part in parts
            for request in clip_requests(part, num_videos=len(run.train_videos))
        ]
        return {
            "step": step.index,
            "shape": str(step.shape),
            "batch_size": step.batch_size,
            "learning_rate": step.learning_rate,
            "clips": [run.train_videos.videos[request.index].path for request in requests],
        }


class BuffersBefore:
    """The buffers of a network before a step, such as the running statistics of its norms."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._copies = [buffer.clone() for buffer in network.buffers()]

    @torch.no_grad()
    def keep(self) -> None:
        """Remember them as they are now."""
        for copy, buffer in zip(self._copies, self._network.buffers(), strict=True):
            copy.copy_(buffer)

    @torch.no_grad()
    def restore(self) -> None:
        """Undo what a forward pass in training did to them."""
        discard_statistics(self._network)
        for copy, buffer in zip(self._copies, self._network.buffers(), strict=True):
            buffer.copy_(copy)
