"""The folder of a run: everything that a run leaves behind, readable at any moment.

    config.yaml        the resolved configuration
    plan.json          the plan's totals and phases
    dataset.json       which videos it is validated on, and how
    manifest/          the manifest that it began with, which holds until its end
    multiply_adds.json of one clip of each shape, forward, if they can be counted
    metrics.jsonl      a line a step
    phases.jsonl       a line a phase: what limited it, the model or the loader
    validation.jsonl   a line a validation
    starts.jsonl       a line each time that the run starts or goes on: command, versions, devices
    scores.csv         of every validation video, by the last validation or the final evaluation
    checkpoint.pt      and what else ``vcycle.train.checkpoint`` writes
    bad_videos.json    videos that no process could read, and why, if there are any
    nonfinite.jsonl    a line for each step whose loss was not finite, if there are any
    tensorboard/, wandb/  live logs, if they are asked for
    result.json        written when the last step is done: its presence means the run is complete
    .lock              locked by the process that writes here, which it names

Lines are complete when they are written and files are atomic, so an interrupted run can be read
and resumed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

from vcycle.config.fields import config_text, read_saved
from vcycle.config.run import RunConfig
from vcycle.data.atomic import naming, remove_partials, write_atomic
from vcycle.data.json_lines import read_object, read_rows, wrong_number
from vcycle.data.loader_stats import LoaderStats
from vcycle.data.manifest import MANIFEST_FILES, Manifest
from vcycle.evaluate.metric_names import metric_of
from vcycle.evaluate.run_manifest import RUN_MANIFEST
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape, clip_name
from vcycle.train.checkpoint import best_steps, clear_after, has_checkpoint
from vcycle.train.live_logs import LiveLogs
from vcycle.train.lock import LOCK_NAME, FolderLock
from vcycle.train.same_run import check_config, identity, parts_sha256

Resume: TypeAlias = bool | Literal["auto"]

_ROWS = {
    "metrics.jsonl": ("step", "seconds", "seconds_left", "waiting_seconds", "batch_size"),
    "validation.jsonl": ("step", "seconds"),
    "phases.jsonl": ("phase",),
    "nonfinite.jsonl": ("step",),
}
"""What each row of a file is of, and the other numbers that are read again."""
_NAMES = (
    *("config.yaml", "plan.json", "dataset.json", "multiply_adds.json"),
    *(*_ROWS, "starts.jsonl", "bad_videos.json", "scores.csv", "result.json"),
)


class RunFolder:
    """A run's files, which the process of rank 0 writes."""

    def __init__(self, path: Path, *, rank: int = 0) -> None:
        self.path = path
        self._writes = rank == 0
        self._bad_videos: dict[str, str] = {}
        self._lock = FolderLock(path)
        self._logs: LiveLogs | None = None

    def close(self) -> None:
        """Let another run have the folder."""
        if self._logs is not None:
            self._logs.close()
        self._lock.release()

    def begin(
        self, config: RunConfig, *, resume: Resume, dry_run: bool = False
    ) -> Literal["new", "resumed", "complete"]:
        """Make and lock the folder, until ``close``, and find out what there is to do in it.

        The first process alone calls this.
        Without ``resume`` it must be empty; with it there must be a checkpoint, unless the run is
        complete; "auto" takes whatever a run of this configuration left, or did not, beside files
        of others. Raises ValueError if it is not so, or another run is in the way. A ``dry_run``
        leaves everything as it is.
        """
        config_text(config)  # what cannot be written is refused now
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"run folder {self.path}: it is a file; choose another name")
        if not dry_run or (self.path / LOCK_NAME).exists():
            self._lock.take()
        if resume and not dry_run:
            remove_partials(self.path, _NAMES)
            remove_partials(self.path / RUN_MANIFEST, MANIFEST_FILES)
        is_empty = all(each.name == LOCK_NAME for each in self.path.glob("*"))
        if not (resume or is_empty):
            raise ValueError(
                f"run folder {self.path}: it is not empty; choose another, or give --resume auto, "
                f"which goes on with a run in it, or begins one beside files of others"
            )
        names = (*_NAMES, "checkpoint.safetensors", "best.safetensors")
        has_run = any((self.path / name).exists() for name in names) or has_checkpoint(self.path)
        if (self.path / RUN_MANIFEST).is_symlink():  # to the manifest of a dataset, it may be
            raise ValueError(
                f"run folder {self.path}: its {RUN_MANIFEST} is a link; put the folder itself there"
            )
        if resume is not True and not has_run:
            return "new"
        is_complete = (self.path / "result.json").is_file()
        if not (resume == "auto" or is_complete or has_checkpoint(self.path)):
            raise ValueError(
                f"run folder {self.path}: it has no checkpoint to resume from; choose another, or "
                f"--resume auto"
            )
        file = self.path / "config.yaml"
        check_config(read_saved(file), config, source=f"run folder {self.path}, config.yaml")
        if is_complete:
            return "complete"
        if not dry_run and not os.access(self.path, os.W_OK):
            raise ValueError(f"run folder {self.path}: it is read-only; copy it, and resume there")
        if not has_checkpoint(self.path):
            return "new"
        if (self.path / "bad_videos.json").is_file():
            self._bad_videos = read_object(self.path / "bad_videos.json")
        return "resumed"

    def result(self) -> dict[str, Any]:
        """The totals of a complete run."""
        return read_object(self.path / "result.json")

    def has_validation(self, step: int) -> bool:
        """Whether the validation after ``step`` is written."""
        return any(row["step"] == step for row in read_rows(self.path / "validation.jsonl"))

    def is_best(self, scores: dict[str, float]) -> bool:
        """Whether a validation is at least as good as that of ``best.safetensors``, if it is there:
        the later of equals is.
        """
        steps = best_steps(self.path)
        metric = metric_of(scores)
        file = self.path / "validation.jsonl"
        rows = read_rows(file, numbers=("step", metric), skips_damaged=True)
        return all(scores[metric] >= row[metric] for row in rows if row["step"] + 1 == steps)

    def predicted_seconds(self) -> float | None:
        """What the run's steps were predicted to take before its first one, if it was."""
        try:
            plan = read_object(self.path / "plan.json")
        except (OSError, ValueError):
            return None
        is_damaged = wrong_number(plan, ["predicted_seconds"])
        return None if is_damaged else float(plan["predicted_seconds"])

    def start(
        self,
        config: RunConfig,
        manifest: Manifest,
        *,
        resumed: Path | None,
        first_step: int,
        predicted_seconds: float,
    ) -> None:
        """Fill the folder that ``begin`` locked, and forget what was logged from ``first_step`` on.

        ``resumed`` is the checkpoint that the run goes on from, None for a new one.
        ``predicted_seconds`` are of all steps; a run that goes on keeps those of its beginning.
        """
        if not self._writes:
            return
        # Of an earlier run: this one is not complete.
        (self.path / "result.json").unlink(missing_ok=True)
        if first_step == 0:
            (self.path / "scores.csv").unlink(missing_ok=True)
            (self.path / "bad_videos.json").unlink(missing_ok=True)
        if first_step == 0 or not (self.path / RUN_MANIFEST / "manifest.csv").is_file():
            manifest.write(self.path / RUN_MANIFEST)
        write_atomic(self.path / "config.yaml", config_text(config))
        earlier = self.predicted_seconds() if first_step else None
        predicted = predicted_seconds if earlier is None else earlier
        plan = config.plan()
        values = {"recipe": config.recipe, **plan.to_dict(), "predicted_seconds": predicted}
        write_atomic(self.path / "plan.json", json.dumps(values, indent=1) + "\n")
        first_phase = plan.phase_of(first_step) if first_step < len(plan) else len(plan.phases)
        for name, numbers in _ROWS.items():
            first = first_phase if numbers[0] == "phase" else first_step
            file, rows = self.path / name, []
            if file.is_file() and first_step:
                rows = read_rows(file, numbers=numbers, skips_damaged=True)
            kept = [json.dumps(row) + "\n" for row in rows if row[numbers[0]] < first]
            if kept or name != "nonfinite.jsonl":
                write_atomic(file, "".join(kept))
            else:
                file.unlink(missing_ok=True)
        clear_after(self.path, next_step=first_step, resumed=resumed)

    def describe(
        self, config: RunConfig, val_videos: Manifest, multiply_adds: dict[tuple[Shape, float], int]
    ) -> None:
        """Write what comparing runs needs: the videos of validations, and what clips cost."""
        if not self._writes:
            return
        validation = {
            **identity(val_videos),
            "parts_sha256": parts_sha256(val_videos),
            "shape": str(config.baseline.shape),
            "num_clips": config.evaluation.num_clips,
            "num_crops": config.evaluation.num_crops,
        }
        text = json.dumps({"validation": validation}, indent=1) + "\n"
        write_atomic(self.path / "dataset.json", text)
        counts = {clip_name(*clip): count for clip, count in multiply_adds.items()}
        write_atomic(self.path / "multiply_adds.json", json.dumps(counts, indent=1) + "\n")

    def add_start(self, row: dict[str, Any]) -> None:
        """Append what started the run, or has it go on."""
        if self._writes:
            file = self.path / "starts.jsonl"
            rows = [*(read_rows(file, skips_damaged=True) if file.is_file() else []), row]
            write_atomic(file, "".join(json.dumps(each) + "\n" for each in rows))

    def open_logs(self, config: RunConfig) -> None:
        """Open the live logs that are asked for, which show the rows of steps and validations."""
        if self._writes and config.log:
            self._logs = LiveLogs(config, self.path)

    def add_steps(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append the rows of steps."""
        self._append("metrics.jsonl", rows)
        if self._logs is not None:
            self._logs.add_steps(rows)

    def add_phase(self, phase: int, stats: LoaderStats) -> None:
        """Append what the loader did in a phase; a resumed one counts from where it went on."""
        row = {
            "phase": phase,
            "clips_per_second": stats.clips_per_second,
            "wait_share": stats.wait_share,
            "workers": stats.num_workers,
            "workers_needed": stats.workers_needed,
            "verdict": stats.verdict(),
        }
        self._append("phases.jsonl", [row])

    def add_validation(self, row: dict[str, Any]) -> None:
        """Append a validation's row."""
        self._append("validation.jsonl", [row])
        if self._logs is not None:
            self._logs.add_validation(row)

    def add_nonfinite(self, row: dict[str, Any]) -> None:
        """Append a step whose loss was not finite."""
        self._append("nonfinite.jsonl", [row])

    def _append(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        if self._writes:
            path = self.path / name
            with naming(path), path.open("a") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))

    def sync_rows(self) -> None:
        """Have the rows on the disk before a checkpoint is, which outlasts a power failure."""
        for name in _ROWS if self._writes else ():
            with suppress(FileNotFoundError), (self.path / name).open("rb") as file:
                os.fsync(file.fileno())

    def add_bad_videos(self, found: dict[str, str]) -> None:
        """List videos that could not be read, path to reason."""
        if self._writes and found.keys() - self._bad_videos.keys():
            self._bad_videos = {**self._bad_videos, **found}
            text = json.dumps(self._bad_videos, indent=1) + "\n"
            write_atomic(self.path / "bad_videos.json", text)

    def finish(
        self, plan: Plan, final: dict[str, Any] | None, *, clip_norm: float = 0.0
    ) -> dict[str, Any]:
        """Write the run's totals, with its last validation and its final evaluation; return them.

        ``final`` is None if no evaluation ends the run. With a ``clip_norm`` steps whose gradients
        were clipped to it are counted.
        """
        validation = read_rows(self.path / "validation.jsonl")[-1]
        steps = read_rows(self.path / "metrics.jsonl")
        result = {
            "steps": len(plan),
            "epochs": plan.epochs,
            "clips": plan.num_clips,
            **{key: value for key, value in validation.items() if key != "step"},
            "predicted_seconds": self.predicted_seconds(),
            **prediction_errors(steps),
            "waiting_seconds": sum(row["waiting_seconds"] for row in steps),
            "bad_videos": len(self._bad_videos),
            "skipped_steps": sum(row["loss"] is None or "skipped" in row for row in steps),
            **({} if final is None else {"final": final}),
        }
        if clip_norm:
            norms = [row.get("gradient_norm") for row in steps]
            result["clipped_steps"] = sum(n is not None and n > clip_norm for n in norms)
        write_atomic(self.path / "result.json", json.dumps(result, indent=1) + "\n")
        return result


def prediction_errors(steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How well the seconds of all steps were known while they went on.

    ``predicted_seconds_at_third`` is what was done and left after a third of the seconds;
    ``prediction_error_from_third`` the largest share by which that was wrong from there on.
    """
    if not steps:  # somebody removed the file
        return {}
    total = steps[-1]["seconds"]
    predicted = [
        row["seconds"] + row["seconds_left"] for row in steps if row["seconds"] >= total / 3
    ]
    return {
        "predicted_seconds_at_third": predicted[0],
        "prediction_error_from_third": max(abs(each - total) for each in predicted) / total,
    }
