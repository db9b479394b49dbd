"""Seconds of a training step at each mini-batch of a study, from which the seconds of runs come.

In: a study. Out: ``steps.json`` in its folder, a row for each task, method, shape, share of the
tokens and batch size: seconds of a step (forward, backward, optimizer), and of its clips in one
process. If runs keep decoded frames, these are there already: ``first_decode_seconds``, for
decoding all videos once, count for each run. Accuracy does not depend on the clock, so runs may
share a machine; their seconds are these, summed over their plans. They are CPU seconds, which on
one thread are those of an idle machine's clock, and the lower quartile of a mini-batch's steps:
what others add to some steps is no part of the method. All methods of a task are timed in turns,
step by step, so that a machine which is slower for a while is so for all of them; and a run's
seconds are from the mean of all methods that timed the same mini-batches, as some of them come in
one part of a plan only.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console

from study_file import Method, Run, Study
from study_provenance import machine
from study_runs import StudyFolder
from study_trials import Trial, during
from vcycle.bench.step import timed_step
from vcycle.config.run import RunConfig
from vcycle.data.atomic import write_atomic
from vcycle.data.decode.kept import KeptFrames
from vcycle.data.manifest import Manifest
from vcycle.data.request import ClipRequest
from vcycle.devices.launch import make_fabric
from vcycle.evaluate.loaders import kept_frames, make_dataset, make_train_loader
from vcycle.evaluate.setup import make_network, read_manifest
from vcycle.models import set_norm_group, set_token_share
from vcycle.train.clock import HostClock, clock_of
from vcycle.train.optim import fuses, make_optimizer
from vcycle.train.run import train

_STEPS = 60
"""Of the timed plans: some of each mini-batch."""

Kind = tuple[str, float, int]
"""Shape, share of the tokens and clips."""
Times = dict[Kind, list[tuple[float, float]]]
"""Seconds of steps and of decoding."""


def time_steps(folder: StudyFolder, runs: list[Run]) -> None:
    """Time the methods of the tasks of ``runs``, all those of a task in turns.

    They are the methods of ``runs``, and those that the task had timed before. A task whose methods
    are all timed here already is not timed again.
    """
    file = folder.path / "steps.json"
    rows = folder.own("steps")
    for task in {run.task.name: run.task for run in runs}.values():
        asked = {run.method.name for run in runs if run.task.name == task.name}
        if asked <= {row["method"] for row in rows if task.has(row)}:
            continue
        asked |= {row["method"] for row in folder.steps() if task.has(row)}
        firsts: dict[str, Run] = {}
        for run in folder.study.runs():
            if run.task.name == task.name and run.method.name in asked:
                firsts.setdefault(run.method.name, run)
        others = [row for row in rows if not task.has(row)]
        rows = [*others, *_rows(folder, list(firsts.values()))]
        write_atomic(file, json.dumps(rows, indent=1) + "\n")
        print(f"{task.name}: {', '.join(firsts)} timed", flush=True)


def check_times(folder: StudyFolder, runs: list[Run]) -> None:
    """Carry out one whole run of each method again, on a machine that is otherwise idle.

    Writes ``quiet.json``: the seconds of its steps by this module, and those that it took.
    """
    file = folder.path / "quiet.json"
    rows = folder.own("quiet")
    done = {(row["dataset"], row["regime"], row["method"]) for row in rows}
    finals = [run for run in runs if run.role == "final" and _is_repeatable(folder, run)]
    for run in {(run.task.name, run.method.name): run for run in reversed(finals)}.values():
        if (run.task.dataset, run.task.regime, run.method.name) in done:
            continue
        config = folder.config(run)
        row = folder.row(run)
        assert config is not None
        assert row is not None
        steps = timed_alike(folder.study, run, folder.steps())
        path = folder.path / "quiet" / run.name
        shutil.rmtree(path, ignore_errors=True)
        with during(run.method.trial):
            result = train(config, path, title=run.name, console=Console(quiet=True))
        rows.append(
            {
                **{key: row[key] for key in ("dataset", "regime", "method", "length", "steps")},
                "seconds": seconds_of(config, steps)["seconds"],
                "took_seconds": result["seconds"] - result["waiting_seconds"],
                "load": os.getloadavg()[0],
                "machine": machine(on_gpu=torch.cuda.is_available()),
                "top1": result["top1"],
                "top1_before": row["top1"],
            }
        )
        write_atomic(file, json.dumps(rows, indent=1) + "\n")
        print(f"{run.name}: {rows[-1]['seconds']} s, took {rows[-1]['took_seconds']} s", flush=True)


def _is_repeatable(folder: StudyFolder, run: Run) -> bool:
    """Whether a run is complete, and what it starts from is here."""
    row = folder.row(run)
    return row is not None and "failed" not in row and folder.config(run) is not None


def timed_alike(study: Study, run: Run, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The timed mini-batches of a run's task that differ from its own in the schedule alone."""

    def way(method: Method) -> tuple[Any, ...]:
        schedule = ("multigrid", "baseline", "evaluation")
        others = {k: v for k, v in method.config.items() if k not in schedule}
        return method.trial, others

    known = {method.name: way(method) for method in study.methods}
    return [
        row for row in rows if run.task.has(row) and known.get(row["method"]) == way(run.method)
    ]


def _rows(folder: StudyFolder, runs: list[Run]) -> list[dict[str, Any]]:
    """The timed mini-batches of one task's methods, of each the run given."""
    configs = []
    for run in runs:
        manifest = folder.manifest(run)
        num_videos = len(Manifest.read(manifest).split("train"))
        configs.append(
            folder.study.config_of(run, rate=1e-4, manifest=str(manifest), num_videos=num_videos)
        )
    kept, first = _read_all(configs)
    timed = _timed(configs, [run.method.trial for run in runs], kept)
    return [
        {
            "dataset": run.task.dataset,
            "regime": run.task.regime,
            "method": run.method.name,
            "shape": shape,
            "token_share": token_share,
            "clips": clips,
            "seconds": _quartile([step for step, _ in times]),
            "decode_seconds": _quartile([decoding for _, decoding in times]),
            "steps": len(times),
            "frames": "files" if kept is None else "kept",
            "first_decode_seconds": first,
            "load": os.getloadavg()[0],
            "machine": machine(on_gpu=torch.cuda.is_available()),
        }
        for run, kinds in zip(runs, timed, strict=True)
        for (shape, token_share, clips), times in sorted(kinds.items())
    ]


def _timed(
    configs: list[RunConfig], trials: list[Trial | None], kept: KeptFrames | None
) -> list[Times]:
    """Seconds of each configuration's steps, taken in turns: what slows a machine slows all."""
    found: list[Times] = [{} for _ in configs]
    with ExitStack() as stack:
        turns = [stack.enter_context(closing(_steps(config, kept))) for config in configs]
        for _ in range(_STEPS):
            for steps, trial, times in zip(turns, trials, found, strict=True):
                with during(trial):
                    kind, seconds = next(steps)
                times.setdefault(kind, []).append(seconds)
    return found


def _read_all(configs: list[RunConfig]) -> tuple[KeptFrames | None, float]:
    """The decoded frames of a task's training videos, if its runs keep them, for all methods.

    And the seconds that decoding them takes for one configuration.
    """
    alone = replace(configs[0].data, num_workers=0)
    splits = [read_manifest(config).split("train") for config in configs]
    kept = kept_frames(alone, splits[0], num_clips=configs[0].plan().num_clips)
    took = []
    for config, videos in zip(configs, splits, strict=True) if kept is not None else ():
        dataset, began = make_dataset(config, videos, kept=kept), time.process_time()
        for index in range(len(dataset)):
            dataset[ClipRequest(index, config.baseline.shape, seed=0)]
        took.append(time.process_time() - began)
    return kept, took[0] if took else 0.0


def _steps(
    config: RunConfig, kept: KeptFrames | None
) -> Generator[tuple[Kind, tuple[float, float]]]:
    """A run's mini-batches in ``_STEPS`` steps, all clips decoded or cut by this process."""
    config = replace(
        config,
        multigrid=replace(config.multigrid, steps=_STEPS),
        data=replace(config.data, num_workers=0),
    )
    plan, fabric, manifest = config.plan(), make_fabric(config), read_manifest(config)
    network = make_network(config, num_classes=manifest.num_classes, fabric=fabric)
    fused = fuses(fabric.device, config.precision)
    model, optimizer = fabric.setup(network, make_optimizer(network, config.optimizer, fused=fused))
    on_cpu = fabric.device.type == "cpu"
    clock = HostClock(time.process_time) if on_cpu else clock_of(fabric.device)
    videos = manifest.split("train")
    with closing(make_train_loader(config, plan, videos, fabric, kept=kept)) as loader:
        batches = iter(loader)
        for step in plan:
            set_norm_group(model, step.norm_group)
            set_token_share(model, step.token_share)
            asked = time.process_time()
            batch = next(batches).to(fabric.device)
            decoding = time.process_time() - asked
            timed = timed_step(
                model, optimizer, batch.clips, batch.labels, fabric=fabric, clock=clock
            )
            yield (str(step.shape), step.token_share, step.batch_size), (timed.step, decoding)


def _quartile(values: list[float]) -> float:
    return statistics.quantiles(values, n=4)[0] if len(values) > 1 else values[0]


def seconds_of(config: RunConfig, rows: list[dict[str, Any]]) -> dict[str, float | None]:
    """Seconds of all steps of a run, and of its clips, by the rows of ``timed_alike``.

    Those of a mini-batch are the mean of the methods that timed it, weighted by their steps. None
    where none did.
    """
    timed: dict[Kind, list[dict[str, Any]]] = {}
    for row in rows:
        timed.setdefault((row["shape"], row["token_share"], row["clips"]), []).append(row)
    total = {"seconds": 0.0, "decode_seconds": rows[0]["first_decode_seconds"] if rows else 0.0}
    for each in config.plan().mini_batches():
        same = timed.get((str(each.shape), each.token_share, each.batch_size))
        if same is None:
            return dict.fromkeys(total)
        weight = sum(row["steps"] for row in same)
        for key in total:
            total[key] += each.steps * sum(row["steps"] * row[key] for row in same) / weight
    return dict(total)
