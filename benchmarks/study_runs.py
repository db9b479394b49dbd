"""Carry out a study's runs, one after the other; any number of processes share the work.

In: a study, its folder and the data sets. Out: a run folder for each run, with ``row.json`` in it
once the run is complete. A run belongs to the process that holds its lock, and a lock ends with
its process: what was interrupted is taken up again by the next one, and nothing is done twice.
"""

from __future__ import annotations

import fcntl
import json
import math
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from study_data import prepare_parts
from study_file import Run, Study, at_full_shape, row_name
from study_provenance import commit, machine
from study_rates import best_rate, wanted_rates
from study_trials import during
from vcycle.config.fields import config_text
from vcycle.config.run import RunConfig
from vcycle.data.atomic import write_atomic
from vcycle.data.manifest import Manifest
from vcycle.evaluate.run import score_run
from vcycle.models import build_model
from vcycle.models.count import multiply_adds
from vcycle.schedule.cost import clip_cost, pixels
from vcycle.schedule.messages import duration
from vcycle.schedule.plan import Plan
from vcycle.train.checkpoint import newest_intact
from vcycle.train.nonfinite import Diverged
from vcycle.train.run import train

_WAIT_SECONDS = 5.0


class StudyFolder:
    """What a study leaves on disk: ``data/`` with its manifests and ``runs/``.

    ``published`` is the table of an earlier ``collect``, or nothing: its runs are complete too.
    """

    def __init__(
        self, study: Study, path: Path, datasets: Path, published: dict[str, Any] | None = None
    ) -> None:
        self.study = study
        self.path = path
        self.datasets = datasets
        self._published = published or {}
        self._published_rows = {row_name(row): row for row in self._published.get("rows", [])}

    def run_folder(self, run: Run) -> Path:
        return self.path / "runs" / run.name

    def row(self, run: Run) -> dict[str, Any] | None:
        """What came of a run; None while it is not complete.

        A run is to be done again if the search for its rate, or for that of the run whose weights
        it starts from, has gone on since and chosen another.
        """
        row = _read_row(self.run_folder(run) / "row.json") or self._published_rows.get(run.name)
        if row is None:
            return None
        before = self.study.pretraining(run)
        if before is not None and self.rate(before) not in (None, row["pretraining_rate"]):
            return None
        return row if self.rate(run) in (None, row["rate"]) else None

    def steps(self) -> list[dict[str, Any]]:
        """The timed mini-batches: those of this machine, and of other tasks the published."""
        return self._with_published("steps", "dataset", "regime")

    def quiet(self) -> list[dict[str, Any]]:
        """The runs that were carried out once more on an idle machine, to check their seconds.

        Those of this folder, and of other methods the published.
        """
        return self._with_published("quiet", "dataset", "regime", "method")

    def own(self, name: str) -> list[dict[str, Any]]:
        """The rows of ``steps`` or ``quiet`` that were measured in this folder."""
        file = self.path / f"{name}.json"
        return list(json.loads(file.read_text())) if file.is_file() else []

    def _with_published(self, name: str, *keys: str) -> list[dict[str, Any]]:
        """The folder's own rows, and the published ones that differ from all of them in keys."""
        rows = self.own(name)
        here = {tuple(row[key] for key in keys) for row in rows}
        published = self._published.get(name, [])
        return rows + [row for row in published if tuple(row[key] for key in keys) not in here]

    def left(self, runs: list[Run]) -> list[Run]:
        """Those of ``runs`` for which there is something to do, in their order.

        A rate that need not be tried is none of them. A published run leaves no weights: it is done
        again if one that starts from them is still to be done.
        """
        new = {run.name for run in runs if self.row(run) is None and self._is_wanted(run)}
        befores = (self.study.pretraining(run) for run in runs if run.name in new)
        needed = {before.name for before in befores if before is not None}
        here = {name for name in needed if (self.path / "runs" / name / "row.json").is_file()}
        return [run for run in runs if run.name in new | (needed - here)]

    def _is_wanted(self, run: Run) -> bool:
        return run.role == "final" or run.rate in self.wanted_rates(run)

    def manifest(self, run: Run) -> Path:
        """The folder of the manifest that a run trains and validates on, made at first use."""
        folder = self.path / "data" / run.task.dataset
        with locked(folder.with_suffix(".lock")):
            prepare_parts(self.study, run.task, self.datasets, folder)
        return folder / run.part

    def rate(self, run: Run) -> float | None:
        """The rate of a run: its own, or the one that its tuning chose, if that is done."""
        if run.rate is not None:
            return run.rate
        if self.wanted_rates(run):
            return None
        return run.method.rate_factor * best_rate(self._losses(run))

    def wanted_rates(self, run: Run) -> list[float]:
        """The rates that the tuning of a run's point has still to try."""
        tuning = self.study.tuning(run.task, run.method, run.length)
        rates = sorted(each.rate for each in tuning if each.rate is not None)
        return wanted_rates(rates, self._losses(run))

    def _losses(self, run: Run) -> dict[float, float]:
        tuning = self.study.tuning(run.task, run.method, run.length)
        rows = [self.row(each) for each in tuning]
        return {
            row["rate"]: math.inf if row.get("failed") else row["loss"]
            for row in rows
            if row is not None
        }

    def config(self, run: Run) -> RunConfig | None:
        """A run's configuration; None while what it needs is not complete."""
        rate, weights = self.rate(run), None
        if (before := self.study.pretraining(run)) is not None:
            folder, row = self.run_folder(before), self.row(before)
            if row is None or not (folder / "row.json").is_file():  # or it is being done again
                return None
            if row.get("failed"):
                raise ValueError(f"{before.name}: {row['failed']}; {run.name} has no weights")
            checkpoint = folder / "checkpoint.pt"
            weights = str(checkpoint)
        if rate is None:
            return None
        manifest = self.manifest(run)
        num_videos = len(Manifest.read(manifest).split("train"))
        return self.study.config_of(
            run, rate=rate, manifest=str(manifest), num_videos=num_videos, weights=weights
        )


def _read_row(file: Path) -> dict[str, Any] | None:
    """A run's row; None if there is none, or none that can be read: the run is done again."""
    try:
        row: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return row if isinstance(row, dict) and {"rate", "top1", "loss"} <= row.keys() else None


def run_study(folder: StudyFolder, runs: list[Run], *, console: Console) -> None:
    """Carry out those of ``runs`` that are not complete, in their order.

    Returns when all are complete, among them those that other processes carry out.
    """
    progress = _Progress(folder, runs, console)
    while waiting := folder.left(runs):
        for run in waiting:
            config = folder.config(run)
            if config is None:
                continue
            with _claimed(folder.path / "locks" / f"{run.name.replace('/', '+')}") as is_ours:
                if not is_ours:
                    continue
                if run in folder.left(runs):
                    began = time.perf_counter()
                    row = _carry_out(folder, run, config)
                    progress.done(run, row, seconds=time.perf_counter() - began)
                break
        else:
            time.sleep(_WAIT_SECONDS)  # others carry out what is left, or what it waits for


def _carry_out(folder: StudyFolder, run: Run, config: RunConfig) -> dict[str, Any]:
    """Train, or go on where it was interrupted; write the row of the table.

    A run that is done again for its weights keeps the row that was published: none is repeated for
    its score, which another machine's rounding can change by several points.
    """
    path, published = folder.run_folder(run), folder.row(run)
    resume = _can_go_on(path, config)
    if path.exists() and not resume:
        shutil.rmtree(path)
    row: dict[str, Any] = {
        "dataset": run.task.dataset,
        "regime": run.task.regime,
        "method": run.method.name,
        "length": run.length,
        "role": run.role,
        "rate": config.baseline.learning_rate.base,
        "seed": run.seed,
        "fold": run.fold,
        "commit": commit(),
        "machine": machine(on_gpu=torch.cuda.is_available()),
        "torch": torch.__version__,
        **costs(config, folder.study.baseline_clips(run.task)),
    }
    if (before := folder.study.pretraining(run)) is not None:
        row["pretraining_rate"] = folder.rate(before)
    path.parent.mkdir(parents=True, exist_ok=True)
    scores: dict[str, Any] = dict.fromkeys(("videos", "top1", "loss"))
    with path.with_name(f"{path.name}.log").open("a") as log:
        try:
            with during(run.method.trial):
                result = train(
                    config, path, resume=resume, title=run.name, console=Console(file=log)
                )
        except Diverged as error:
            row["failed"] = str(error).partition(";")[0]
            # It counts as guessing: left out, it would flatter a method that diverges.
            classes = len(Manifest.read(config.data.manifest).classes)
            scores |= {"top1": 1 / classes, "loss": math.log(classes)}
        else:
            scores = {key: result[key] for key in scores}
            row["busy_seconds"] = result["seconds"] - result["waiting_seconds"]
            full = at_full_shape(run, config)
            if full is not None:
                seen = score_run(full, path, split="val").values
                row |= {"full_shape_top1": seen["top1"], "full_shape_loss": seen["loss"]}
    row |= scores
    if published is not None and "failed" not in {**row, **published}:
        row = published
    write_atomic(path / "row.json", json.dumps(row, indent=1) + "\n")
    return row


def _can_go_on(path: Path, config: RunConfig) -> bool:
    """Whether an interrupted run of this configuration, and of these weights, left a checkpoint."""
    file = path / "config.yaml"
    if not file.is_file() or (path / "row.json").is_file():  # which is not what is wanted now
        return False
    try:
        newest_intact(path, say=print)
    except ValueError:
        return False
    weights = config.model.weights
    is_newer = weights is None or file.stat().st_mtime > Path(weights).stat().st_mtime
    return is_newer and file.read_text() == config_text(config)


def costs(config: RunConfig, baseline_clips: int) -> dict[str, Any]:
    """A run's steps, clips over the baseline's, and multiply-adds of its steps' forward passes."""
    plan = config.plan()
    with torch.device("meta"):
        model = build_model(config.model.name, num_classes=10, **config.model.options)
    total = clip_cost(plan, lambda shape, share: multiply_adds(model, shape, share))
    return {
        "steps": len(plan),
        "epoch_factor": plan.num_clips / baseline_clips,
        "multiply_adds": total.plan,
    }


class _Progress:
    """A line a complete run, with the time that the rest will take at the pace so far.

    The pace is that of all processes together, since this one began.
    """

    def __init__(self, folder: StudyFolder, runs: list[Run], console: Console) -> None:
        self._folder, self._runs, self._console = folder, runs, console
        points = {run.point: run for run in runs}
        self._pixels = {point: self._num_pixels(run) for point, run in points.items()}
        self._began = time.perf_counter()
        self._first = self._left(folder.left(runs))

    def _num_pixels(self, run: Run) -> float:
        plan: Plan = self._folder.study.config_of(run, rate=1.0, num_videos=1000).plan()
        return pixels(plan).plan

    def _left(self, runs: list[Run]) -> float:
        return sum(self._pixels[run.point] for run in runs)

    def done(self, run: Run, row: dict[str, Any], *, seconds: float) -> None:
        rest = self._folder.left(self._runs)
        waiting = {each.name for each in rest}
        others = (each for each in self._runs if each.name not in waiting)
        complete = sum(self._folder.row(each) is not None for each in others)
        took = time.perf_counter() - self._began
        # A choice that changed may leave more than there was.
        done = max(self._first - self._left(rest), self._pixels[run.point])
        left = self._left(rest) * took / done
        said = row.get("failed") or f"top-1 {row['top1']:.1%}, loss {row['loss']:.3f}"
        self._console.print(
            f"{complete} of {complete + len(rest)}  {run.name} at {row['rate']:g}: {said}  "
            f"({duration(seconds)}; {duration(left)} left)",
            soft_wrap=True,
            highlight=False,
        )


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold ``file``'s lock, once no other process does."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def _claimed(file: Path) -> Iterator[bool]:
    """Hold ``file``'s lock unless another process does: then False."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with closing(file.open("a")) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
