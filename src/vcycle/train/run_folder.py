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

Lines are complete when they are written and files are atomic, so an interrupted run can be read
and resumed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from vcycle.config.run import RunConfig
from vcycle.data.atomic import write_atomic
from vcycle.data.loader_stats import LoaderStats
from vcycle.schedule.plan import Plan


class RunFolder:
    """A run's files. The process of rank 0 writes them, of the others only their bad videos."""

    def __init__(self, path: Path, *, rank: int = 0) -> None:
        self.path = path
        self._rank = rank
        self._bad_videos: dict[str, str] = {}

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def _writes(self) -> bool:
        return self._rank == 0

    def check(self, config: RunConfig, *, resume: bool) -> None:
        """Raise ValueError if another run is in the way, or this one cannot be resumed."""
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
        """The totals of a complete run."""
        file = self.path / "result.json"
        return dict(json.loads(file.read_text())) if file.is_file() else None

    def has_validation(self, step: int) -> bool:
        """Whether the validation after ``step`` is written."""
        return any(row["step"] == step for row in read_rows(self.path / "validation.jsonl"))

    def start(self, config: RunConfig, plan: Plan, *, first_step: int) -> None:
        """Make the folder, and forget what was logged from ``first_step`` on."""
        if self._bad_videos_file.is_file():
            self._bad_videos = json.loads(self._bad_videos_file.read_text())
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
        return self.path / (f"bad_videos.{self._rank}.json" if self._rank else "bad_videos.json")

    def add_steps(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append the rows of steps."""
        self._append("metrics.jsonl", rows)

    def add_phase(self, phase: int, stats: LoaderStats) -> None:
        """Append what the loader did in a phase; a resumed one counts from where it went on."""
        row = {
            "phase": phase,
            "clips_per_second": stats.clips_per_second,
            "wait_share": stats.wait_share,
            "workers": stats.num_workers,
            "workers_needed": stats.workers_needed,
            "verdict": stats.verdict,
        }
        self._append("phases.jsonl", [row])

    def add_validation(self, row: dict[str, Any]) -> None:
        """Append a validation's row."""
        self._append("validation.jsonl", [row])

    def _append(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        if self._writes:
            with (self.path / name).open("a") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))

    def add_bad_videos(self, *found: dict[str, str]) -> dict[str, str]:
        """Write what this process could not read, path to reason, and return all of it."""
        added = {path: reason for videos in found for path, reason in videos.items()}
        if added.keys() - self._bad_videos.keys():
            self._bad_videos = {**self._bad_videos, **added}
            write_atomic(self._bad_videos_file, json.dumps(self._bad_videos, indent=1) + "\n")
        return self._bad_videos

    def unite_bad_videos(self, of_all: dict[str, str]) -> None:
        """Replace the lists of the processes by one."""
        if not self._writes:
            self._bad_videos_file.unlink(missing_ok=True)
        elif of_all != self._bad_videos:
            write_atomic(self._bad_videos_file, json.dumps(of_all, indent=1) + "\n")

    def finish(self, plan: Plan, *, num_bad_videos: int) -> dict[str, Any]:
        """Write the run's totals, with its last validation, and return them."""
        validation = read_rows(self.path / "validation.jsonl")[-1]
        steps = read_rows(self.path / "metrics.jsonl")
        result = {
            "steps": len(plan),
            "epochs": plan.epochs,
            "clips": plan.num_clips,
            **{key: value for key, value in validation.items() if key != "step"},
            "waiting_seconds": sum(row["waiting_seconds"] for row in steps),
            "bad_videos": num_bad_videos,
        }
        write_atomic(self.path / "result.json", json.dumps(result, indent=1) + "\n")
        return result


def config_text(config: RunConfig) -> str:
    """The configuration as YAML."""
    return yaml.safe_dump(asdict(config), sort_keys=False)


def _read_config(file: Path) -> dict[str, Any]:
    """What a run's ``config.yaml`` says. Raises ValueError unless it can be one."""
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
