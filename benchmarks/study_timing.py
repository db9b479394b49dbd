"""Seconds of a training step at each mini-batch of a study, from which the seconds of runs come.

In: a study. Out: `steps.json` in its folder, a row for each task, method, shape and batch size:
seconds of a step (forward, backward, optimizer), and of decoding its clips in one process. Accuracy
does not depend on the clock, so runs may share a machine; their seconds are these, summed over
their plans. Each method trains a short plan with the loop itself, on one thread, and the lower
quartile of a mini-batch's steps counts: what others add to some steps is no part of the method.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from study_file import Run
from study_runs import StudyFolder
from vcycle.config.run import RunConfig
from vcycle.data.atomic import write_atomic
from vcycle.data.manifest import Manifest
from vcycle.train.loop import train
from vcycle.train.run_folder import read_rows

_STEPS = 72
"""Of the timed plans: some of each mini-batch."""


def time_steps(folder: StudyFolder, runs: list[Run]) -> None:
    """Time the methods of ``runs`` on their tasks; what is timed already is not timed again."""
    file = folder.path / "steps.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else []
    done = {(row["dataset"], row["regime"], row["method"]) for row in rows}
    firsts = {(run.task.name, run.method.name): run for run in reversed(runs)}
    for run in firsts.values():
        if (run.task.dataset, run.task.regime, run.method.name) not in done:
            rows += _time(folder, run)
            write_atomic(file, json.dumps(rows, indent=1) + "\n")


def _time(folder: StudyFolder, run: Run) -> list[dict[str, Any]]:
    manifest = folder.manifest(run)
    num_videos = len(Manifest.read(manifest).split("train"))
    config = folder.study.config_of(run, rate=1e-4, manifest=str(manifest), num_videos=num_videos)
    path = folder.path / "timing"
    shutil.rmtree(path, ignore_errors=True)
    with Path(os.devnull).open("w") as nowhere:
        train(_shortened(config), path, console=Console(file=nowhere))
    steps = read_rows(path / "metrics.jsonl")
    shutil.rmtree(path)
    print(f"{run.task.name} {run.method.name}: {len(steps)} steps timed", flush=True)
    rows = []
    for shape, clips in sorted({(step["shape"], step["batch_size"]) for step in steps}):
        here = [step for step in steps if (step["shape"], step["batch_size"]) == (shape, clips)]
        waited = [step["waiting_seconds"] for step in here]
        whole = [clips / step["clips_per_second"] for step in here]
        busy = [all_of_it - w for all_of_it, w in zip(whole, waited, strict=True)]
        rows.append(
            {
                "dataset": run.task.dataset,
                "regime": run.task.regime,
                "method": run.method.name,
                "shape": shape,
                "clips": clips,
                "seconds": _quartile(busy),
                "decode_seconds": _quartile(waited),
                "steps": len(here),
                "load": os.getloadavg()[0],
            }
        )
    return rows


def _shortened(config: RunConfig) -> RunConfig:
    """The same mini-batches in few steps, all clips decoded by the training process."""
    evaluation = replace(config.evaluation, times=1, num_clips=1, precise_bn=0)
    return replace(
        config,
        multigrid=replace(config.multigrid, steps=_STEPS),
        data=replace(config.data, num_workers=0),
        evaluation=evaluation,
    )


def _quartile(values: list[float]) -> float:
    return statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def seconds_of(config: RunConfig, rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Seconds of all steps of a run, and of decoding its clips, by the rows of its method.

    None where a mini-batch was not timed.
    """
    timed = {(row["shape"], row["clips"]): row for row in rows}
    total = {"seconds": 0.0, "decode_seconds": 0.0}
    for each in config.plan().mini_batches():
        row = timed.get((str(each.shape), each.batch_size))
        if row is None:
            return dict.fromkeys(total)
        for key in total:
            total[key] += each.steps * row[key]
    return dict(total)
