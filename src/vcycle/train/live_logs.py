"""TensorBoard and Weights & Biases: the rows of a run folder as series, while they are written.

In: rows of ``metrics.jsonl`` and ``validation.jsonl``. Out: ``tensorboard/`` and ``wandb/`` in the
run folder, and wandb's server unless it is offline. ``metrics.jsonl`` is the record and these are
views of it: a run that goes on writes them anew from the rows that it keeps, so that no point is
there twice. Only the process of rank 0 has them.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vcycle.config.run import RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.evaluate.metric_names import METRICS
from vcycle.schedule.messages import shortened
from vcycle.schedule.shape import Shape

Series = dict[str, float]
_OVER_CLIPS = ("loss", "validation/top1", "validation/map")


def check_installed(names: Iterable[str]) -> None:
    """Raise ValueError unless the packages of these logs are installed."""
    for name in names:
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name is found, too
            raise ValueError(f"log {name}: it is not installed; pip install 'vcycle[{name}]'")


class LiveLogs:
    """The logs that a configuration asks for."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        """Open them, and write what the folder's rows say so far."""
        rows = read_rows(folder / "metrics.jsonl")
        self._folder = folder
        self._clips = 0
        began = time.time() - (rows[-1]["seconds"] if rows else 0.0)
        self._logs: list[_TensorBoard | _WandB] = []
        if "tensorboard" in config.log:
            self._logs.append(_TensorBoard(folder, began))
        if "wandb" in config.log:
            self._logs.append(_WandB(config, folder))
        validations = {row["step"]: row for row in read_rows(folder / "validation.jsonl")}
        for row in rows:
            self.add_steps([row])
            if row["step"] in validations:
                self.add_validation(validations[row["step"]])

    def add_steps(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows of ``metrics.jsonl``, in order."""
        for row in rows:
            self._clips += row["batch_size"]
            self._add(dict(_step_series(row)), row)

    def add_validation(self, row: dict[str, Any]) -> None:
        """Add a row of ``validation.jsonl``, after those of its steps."""
        kept = (*METRICS, "loss", "coverage")
        self._add({f"validation/{name}": row[name] for name in kept if name in row}, row)

    def _add(self, values: Series, row: dict[str, Any]) -> None:
        for log in self._logs:
            log.add(values, step=row["step"], clips=self._clips, seconds=row["seconds"])

    def close(self) -> None:
        """Write what is left."""
        for log in self._logs:
            log.close(complete=(self._folder / "result.json").is_file())


def _step_series(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """A step's numbers; the plan's shape and batch are series too."""
    for name in ("loss", "learning_rate", "clips_per_second", "waiting_seconds"):
        if row[name] is not None:  # a loss that was not finite
            yield name, row[name]
    for name, size in asdict(Shape.parse(row["shape"])).items():
        yield f"plan/{name}", size
    yield "plan/batch_size", row["batch_size"]
    yield "plan/phase", row["phase"] + 1


class _TensorBoard:
    """Over steps; ``over_clips/`` over clips; its "Relative" axis is seconds of training."""

    def __init__(self, folder: Path, began: float) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = folder / "tensorboard"
        for old in place.glob("events.out.tfevents.*"):
            old.unlink()
        # A TensorBoard that has read those forgets them, too.
        self._writer = SummaryWriter(str(place), purge_step=0, flush_secs=20)
        self._began = began

    def add(self, values: Series, *, step: int, clips: int, seconds: float) -> None:
        for name, value in values.items():
            at = {"walltime": self._began + seconds}
            self._writer.add_scalar(name, value, step, **at)
            if name in _OVER_CLIPS:
                self._writer.add_scalar(f"over_clips/{name}", value, clips, **at)

    def close(self, *, complete: bool) -> None:
        self._writer.close()


class _WandB:
    """``clips`` and ``seconds`` are series, to be chosen as the axis of any other.

    Its own variables decide the rest: WANDB_MODE=offline, WANDB_PROJECT, WANDB_ENTITY.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        import wandb

        place = folder / "wandb"
        place.mkdir(exist_ok=True)
        file = place / "run_id"
        if not file.is_file():
            file.write_text(secrets.token_hex(4))
        name = file.read_text()
        before = list(place.glob(f"offline-run-*-{name}"))
        try:
            self._run = wandb.init(
                project=None if "WANDB_PROJECT" in os.environ else "vcycle",
                id=name,
                name=folder.resolve().name,
                dir=str(folder),
                config=asdict(config),
                resume="allow",
                settings=wandb.Settings(console="off"),
            )
        except wandb.errors.Error as error:
            reason = shortened(error)
            raise ValueError(
                f"log wandb: {reason}; run wandb login, or set WANDB_MODE=offline"
            ) from error
        if self._run.offline:
            for old in before:  # all that they say is written anew
                shutil.rmtree(old)
        self._first_step = self._run.step  # above 0 if the server has the steps before

    def add(self, values: Series, *, step: int, clips: int, seconds: float) -> None:
        if step >= self._first_step:
            self._run.log({**values, "clips": clips, "seconds": seconds}, step=step)

    def close(self, *, complete: bool) -> None:
        self._run.finish(exit_code=0 if complete else 1)
