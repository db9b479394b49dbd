"""The folder of a run: everything that a run leaves behind, readable at any moment.

    config.yaml        the resolved configuration
    plan.json          the plan's totals and phases
    metrics.jsonl      a line a step
    phases.jsonl       a line a phase: what limited it, the model or the loader
    validation.jsonl   a line a validation
    checkpoint.pt      model, optimizer and step, replaced at each validation
    bad_videos.json    videos that could not be read, and why, if there are any; while a run of
                       several processes goes on each has its own, bad_videos.1.json and so on
    result.json        written when the last step is done: its presence means the run is complete

Lines are whole when they are written, files are replaced at once, so an interrupted run can be
read and resumed.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning_fabric import Fabric
from torch import Tensor

from vcycle.config.run import RunConfig
from vcycle.data.atomic import write_atomic
from vcycle.data.loader_stats import LoaderStats
from vcycle.schedule.plan import Plan, Step


class RunFolder:
    """Writes a run's files, from the process of rank 0; the others help to average."""

    def __init__(self, path: Path, *, fabric: Fabric) -> None:
        self.path = path
        self._fabric = fabric
        self._writes = fabric.is_global_zero
        self._rows: list[tuple[dict[str, Any], Tensor]] = []
        self.bad_videos: tuple[dict[str, str], ...] = ()
        """Path to reason, of each loader; they add to it while they read."""
        self._listed: dict[str, str] = {}

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    def check(self, config: RunConfig, *, resume: bool) -> None:
        """ValueError where another run is in the way, or this one cannot be resumed."""
        if not resume:
            if self.path.exists() and not self.path.is_dir():
                raise ValueError(f"run folder {self.path}: it is a file; choose another name")
            if self.path.is_dir() and any(self.path.iterdir()):
                raise ValueError(
                    f"run folder {self.path}: it is not empty; choose another, or resume that run"
                )
            return
        if not self.checkpoint.is_file():
            raise ValueError(f"run folder {self.path}: it has no checkpoint to resume from")
        before = _read_config(self.path / "config.yaml")
        now = yaml.safe_load(config_text(config))
        for values in (before, now):
            for name in ("threads", "accumulate", "evaluation", "notes"):
                values.pop(name, None)
            for name in ("manifest", "num_workers", "max_bad_share", "decode_seconds"):
                values["data"].pop(name, None)
            values["model"].pop("weights", None)
        if before != now:
            keys = {**before, **now}
            differing = sorted(str(key) for key in keys if before.get(key) != now.get(key))
            raise ValueError(
                f"run folder {self.path}: {', '.join(differing)} in its config.yaml differs from "
                f"this configuration; resume with the same, or choose another folder"
            )

    def result(self) -> dict[str, Any] | None:
        """The totals of a complete run, the same on every process."""
        file = self.path / "result.json"
        found = json.loads(file.read_text()) if self._writes and file.is_file() else None
        shared: dict[str, Any] | None = self._fabric.broadcast(found)
        return shared

    def has_validation(self, step: int) -> bool:
        """Whether the validation after ``step`` is written, the same on every process."""
        file = self.path / "validation.jsonl"
        rows = read_rows(file) if self._writes else []
        return bool(self._fabric.broadcast(any(row["step"] == step for row in rows)))

    def start(self, config: RunConfig, plan: Plan, *, first_step: int) -> None:
        """Make the folder, and forget what was logged from ``first_step`` on."""
        if self._bad_videos_file.is_file():
            self._listed = json.loads(self._bad_videos_file.read_text())
        if not self._writes:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path / "config.yaml", config_text(config))
        values = {"recipe": config.recipe, **plan.to_dict()}
        write_atomic(self.path / "plan.json", json.dumps(values, indent=1) + "\n")
        first_phase = plan.phase_of(first_step) if first_step < len(plan) else len(plan.phases)
        for name, key, first in (
            ("metrics.jsonl", "step", first_step),
            ("validation.jsonl", "step", first_step),
            ("phases.jsonl", "phase", first_phase),
        ):
            file = self.path / name
            rows = read_rows(file) if file.exists() and first_step else []
            kept = [json.dumps(row) + "\n" for row in rows if row[key] < first]
            write_atomic(file, "".join(kept))

    @property
    def _bad_videos_file(self) -> Path:
        rank = self._fabric.global_rank
        return self.path / (f"bad_videos.{rank}.json" if rank else "bad_videos.json")

    def add_step(
        self, step: Step, loss: Tensor, *, seconds: float, step_seconds: float, waited: float
    ) -> None:
        """Keep a step's row until the next flush; its loss may still be on the way to the host."""
        row = {
            "step": step.index,
            "phase": step.phase,
            "shape": str(step.shape),
            "batch_size": step.batch_size,
            "learning_rate": step.learning_rate,
            "norm_group": step.norm_group,
            "clips_per_second": step.batch_size / step_seconds,
            "waiting_seconds": waited,
            "seconds": seconds,
        }
        self._rows.append((row, loss))

    def flush(self, *, alone: bool = False) -> None:
        """Write the kept rows, with losses averaged over the processes.

        All processes call this at the same steps, unless one is leaving ``alone``. ValueError
        where a loss is not finite: nothing that comes after it is worth computing.
        """
        bad = {path: reason for videos in self.bad_videos for path, reason in videos.items()}
        if bad.keys() - self._listed.keys():
            self._listed = {**self._listed, **bad}
            write_atomic(self._bad_videos_file, json.dumps(self._listed, indent=1) + "\n")
        rows, self._rows = self._rows, []
        if not rows:
            return
        losses = torch.stack([loss for _, loss in rows])
        if self._fabric.world_size > 1 and not alone:
            torch.distributed.all_reduce(losses)
            losses /= self._fabric.world_size
        if self._writes:
            lines = [
                json.dumps({**row, "loss": loss if math.isfinite(loss) else None}) + "\n"
                for (row, _), loss in zip(rows, losses.tolist(), strict=True)
            ]
            with (self.path / "metrics.jsonl").open("a") as file:
                file.write("".join(lines))
        if not (alone or bool(losses.isfinite().all())):
            first = int(losses.isfinite().logical_not().nonzero()[0])
            row = rows[first][0]
            raise ValueError(
                f"step {row['step']}: the loss is {losses[first].item()} at rate "
                f"{row['learning_rate']:g}; use a smaller --baseline.learning_rate.base, a "
                f"longer warm-up, or full precision if it is mixed"
            )

    def add_phase(self, phase: int, stats: LoaderStats) -> None:
        """Append what the loader did in a phase; a resumed one counts from where it went on."""
        if self._writes:
            row = {
                "phase": phase,
                "clips_per_second": stats.clips_per_second,
                "wait_share": stats.wait_share,
                "workers": stats.num_workers,
                "workers_needed": stats.workers_needed,
                "verdict": stats.verdict,
            }
            with (self.path / "phases.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")

    def add_validation(self, row: dict[str, Any]) -> None:
        """Append a validation's row."""
        if self._writes:
            with (self.path / "validation.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")

    def finish(self, plan: Plan) -> dict[str, Any]:
        """Write the run's totals, with its last validation, and return them on every process."""
        self.flush()
        self._unite_bad_videos()
        result: dict[str, Any] = {}
        if self._writes:
            validation = read_rows(self.path / "validation.jsonl")[-1]
            steps = read_rows(self.path / "metrics.jsonl")
            result = {
                "steps": len(plan),
                "epochs": plan.epochs,
                "clips": plan.num_clips,
                **{key: value for key, value in validation.items() if key != "step"},
                "waiting_seconds": sum(row["waiting_seconds"] for row in steps),
                "bad_videos": len(self._listed),
            }
            write_atomic(self.path / "result.json", json.dumps(result, indent=1) + "\n")
        shared: dict[str, Any] = self._fabric.broadcast(result)
        return shared

    def _unite_bad_videos(self) -> None:
        """List what any process could not read in the list of the first."""
        if self._fabric.world_size == 1:
            return
        lists: list[dict[str, str]] = [{}] * self._fabric.world_size
        torch.distributed.all_gather_object(lists, self._listed)
        united = {path: reason for listed in lists for path, reason in listed.items()}
        if self._writes and united:
            write_atomic(self._bad_videos_file, json.dumps(united, indent=1) + "\n")
        elif not self._writes:
            self._bad_videos_file.unlink(missing_ok=True)
        self._listed = united

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.flush(alone=error is not None)


def config_text(config: RunConfig) -> str:
    """The configuration as YAML."""
    return yaml.safe_dump(asdict(config), sort_keys=False)


def _read_config(file: Path) -> dict[str, Any]:
    """What a run's ``config.yaml`` says; ValueError unless it can be one."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        if all(isinstance(each, dict) for each in (values, values["data"], values["model"])):
            return dict(values)
    except (yaml.YAMLError, LookupError, TypeError, ValueError, RecursionError):
        pass
    raise ValueError(
        f"{file}: no configuration of a run in it; restore it, or start anew in another folder"
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; a last line that a crash cut short is left out."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
