"""A loss or gradients that are not finite: of which clips, and how to leave them without a trace.

In: a step, and whose loss it was. Out: a line of ``nonfinite.jsonl`` and an error that names the
clips; for a step that is skipped, the network as it was before. No checkpoint has weights that are
not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vcycle.data.request import StepPart
from vcycle.data.sampler import video_indices
from vcycle.devices.agreement import gathered, in_all
from vcycle.devices.fabric import Fabric
from vcycle.models import discard_statistics
from vcycle.train.start import Run
from vcycle.train.step_log import StepLoss

_MOST_NAMED = 8
_MOST_IN_A_ROW = 20
_MOST_OVERFLOWS = 50
"""Steps in a row that a scaler of gradients may skip: each halves its factor, 2^16 at first."""


class Diverged(ValueError):  # noqa: N818
    """A run whose loss or weights are not finite; another rate may help."""


class NonFinite:
    """What a run does about losses that are not finite, as ``config.nonfinite`` says."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._in_a_row = 0
        self._overflows = 0
        # A gradient scaler finds gradients that are not finite by itself, and lowers its factor.
        self._checks_gradients = run.config.nonfinite == "skip" and not has_scaler(run.fabric)

    def may_update(self, loss: Tensor) -> bool:
        """Whether a step's ``loss``, a scalar, and the gradients of its parameters are finite.

        All processes get the same answer. Waits for the device.
        """
        fine = loss.isfinite()
        if self._checks_gradients:
            grads = [each.grad for each in self._run.network.parameters()]
            fine &= are_finite([grad for grad in grads if grad is not None], loss.device)
        return in_all(fine, self._run.fabric)

    def check_weights(self, *, next_step: int) -> None:
        """Raise Diverged before weights are written that are not finite, though losses were."""
        weights = dict(self._run.network.named_parameters())
        values, fabric = [each.detach() for each in weights.values()], self._run.fabric
        if in_all(are_finite(values, fabric.device), fabric):
            return
        bad = [name for name, value in weights.items() if not bool(value.isfinite().all())]
        raise Diverged(
            f"step {next_step - 1}: {len(bad)} of {len(weights)} weights are not finite, among "
            f"them {bad[0]}, though the losses are; no checkpoint is written of them: use a "
            f"smaller --baseline.learning_rate.base, or --nonfinite skip, which leaves out steps "
            f"whose gradients are not finite"
        )

    def account(self, losses: list[StepLoss]) -> list[str]:
        """Write the steps without a finite loss; a line for people for each that was skipped.

        All processes call this with the same steps. Raises Diverged for the first such step,
        unless they are skipped; then if very many follow each other. So it does if gradients
        overflow in very many steps, whatever a scaler does.
        """
        lines = []
        for loss in losses:
            self._overflows = self._overflows + 1 if loss.is_skipped else 0
            if self._overflows == _MOST_OVERFLOWS:
                raise Diverged(
                    f"step {loss.step}: gradients overflowed in each of the last "
                    f"{_MOST_OVERFLOWS} steps, and none was taken; use --precision bf16-mixed or "
                    f"32-true, or a smaller --baseline.learning_rate.base"
                )
            overflowed = self._checks_gradients and loss.is_skipped
            if math.isfinite(loss.mean) and not overflowed:
                self._in_a_row = 0
                continue
            self._in_a_row += 1
            row = self._row(loss)
            self._run.folder.add_nonfinite(row)
            named = ", ".join(row["clips"][:_MOST_NAMED])
            more = len(row["clips"]) - _MOST_NAMED
            of_gradients = "gradients are not finite, " if math.isfinite(loss.mean) else ""
            what = (
                f"step {row['step']}: {of_gradients}the loss is {loss.mean} at rate "
                f"{row['learning_rate']:g}, of "
                f"{row['batch_size']} clips of {row['shape']}, among them {named}"
                + (f" and {more} more (nonfinite.jsonl)" if more > 0 else "")
            )
            if self._run.config.nonfinite == "stop":
                raise Diverged(
                    f"{what}; use a smaller --baseline.learning_rate.base, a longer warm-up, full "
                    f"precision if it is mixed, or --nonfinite skip"
                )
            if self._in_a_row == _MOST_IN_A_ROW:
                raise Diverged(
                    f"{what}; nor was that of any of the {_MOST_IN_A_ROW - 1} steps before: use a "
                    f"smaller --baseline.learning_rate.base"
                )
            lines.append(f"{what}; skipped")
        return lines

    def _row(self, loss: StepLoss) -> dict[str, Any]:
        """The step, with the clips of the processes whose part of the loss was not finite, or all.

        Gradients are those of all processes.
        """
        run, step = self._run, self._run.plan[loss.step]
        is_finite = gathered(math.isfinite(loss.own), run.fabric)
        if all(is_finite):
            is_finite = [False] * len(is_finite)
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
        videos = run.train_videos.videos
        shown = [
            video_indices(part.positions, seed=part.seed, num_videos=len(videos)) for part in parts
        ]
        return {
            "step": step.index,
            "shape": str(step.shape),
            "batch_size": step.batch_size,
            "learning_rate": step.learning_rate,
            "clips": [videos[index].name for indices in shown for index in indices.tolist()],
        }


def are_finite(values: Sequence[Tensor], device: torch.device) -> Tensor:
    """Whether all of ``values`` are finite: a scalar on ``device``, which nothing waits for."""
    with_norm = [each for each in values if each.is_floating_point() and each.numel()]
    if not with_norm:
        return torch.ones((), dtype=torch.bool, device=device)
    largest = torch._foreach_norm(with_norm, math.inf)
    return torch.stack([each.isfinite() for each in largest]).all()


def has_scaler(fabric: Fabric) -> bool:
    """Whether a gradient scaler stands between gradients and the optimizer."""
    return getattr(fabric.strategy.precision, "scaler", None) is not None


class BuffersBefore:
    """The buffers of a network before a step, such as the running statistics of its norms."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._before: dict[str, Tensor] = {}

    @torch.no_grad()
    def keep(self) -> None:
        """Remember them as they are now."""
        self._before = {name: each.clone() for name, each in self._network.named_buffers()}

    @torch.no_grad()
    def restore(self) -> None:
        """Undo what a forward pass in training did to them, but to their sizes."""
        discard_statistics(self._network)
        for name, buffer in self._network.named_buffers():
            before = self._before.get(name)
            if before is not None and before.shape == buffer.shape:
                buffer.copy_(before)
