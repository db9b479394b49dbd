"""The training loop, top to bottom.

In: a RunConfig and a folder. Out: that folder, filled (see run_folder), and the run's result. The
plan says what each step is; the loop does it. Nothing is rebuilt at a phase change: the rate and
the norm group come from the step, the shape comes with the clips.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch.nn import functional as F

from vcycle.config.run import RunConfig
from vcycle.data.batch import normalize
from vcycle.data.randomness import indexed_seeds
from vcycle.evaluate.evaluate import evaluate
from vcycle.evaluate.norms import estimate_norms
from vcycle.evaluate.setup import make_fabric
from vcycle.models import commit_statistics, memory_format, set_norm_group
from vcycle.train.agreement import any_process, from_first, united
from vcycle.train.checkpoint import save_checkpoint
from vcycle.train.optim import set_learning_rate
from vcycle.train.progress import Display
from vcycle.train.run_folder import RunFolder
from vcycle.train.start import Run, start
from vcycle.train.step_log import StepLog
from vcycle.train.stop import stop_requests

# Reading a loss waits for the device, so losses are read and written this many steps at a time.
_FLUSH_STEPS = 10


def train(
    config: RunConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    title: str | None = None,
    console: Console | None = None,
) -> dict[str, Any]:
    """Train as ``config`` says; all that the run leaves behind is in ``folder``.

    Processes that torchrun started each call this alike. Returns the run's totals with its last
    validation; resuming a complete run returns them again. Raises ValueError before step 0 for
    what a user has to change, and later if too many videos are bad or the loss is not finite;
    KeyboardInterrupt after Ctrl-C or SIGTERM, once the step under way is done and a checkpoint is
    written.
    """
    fabric = make_fabric(config)
    files = RunFolder(Path(folder), rank=fabric.global_rank)
    files.check(config, resume=resume)
    done = from_first(fabric, files.result) if resume else None
    if done is not None:
        fabric.print(f"{folder}: complete, nothing is left to train")
        return done
    run = start(config, files, fabric, resume=resume)
    console = (console or Console()) if fabric.is_global_zero else Console(quiet=True)
    display = Display(
        run.plan, title=title or config.recipe, first_step=run.first_step, console=console
    )
    with closing(run.loader), closing(run.val_loader), display:
        try:
            loop(run, display)
        finally:
            files.add_bad_videos(run.loader.bad_videos, run.val_loader.bad_videos)
    return finish(run)


def loop(run: Run, display: Display) -> None:
    """Train the steps that are left, with the validations and checkpoints among them."""
    config, plan, fabric, network = run.config, run.plan, run.fabric, run.network
    loss_of = F.binary_cross_entropy_with_logits if run.manifest.multi_label else F.cross_entropy
    layout = memory_format(network)
    # Dropout is indexed by the step, so that a resumed run draws what an uninterrupted one does.
    generator = _default_generator(fabric.device)
    positions = np.arange(len(plan) * config.accumulate)
    seeds = indexed_seeds(config.seed, f"model/{fabric.global_rank}", positions)
    validation_steps = _evenly_spaced(len(plan), config.evaluation.times)
    norm_group: int | None = None
    set_norm_group(network, norm_group)
    next_step, seconds = run.first_step, run.first_seconds

    # The run may have stopped between this checkpoint and its validation.
    if next_step in validation_steps and not from_first(
        fabric, lambda: run.folder.has_validation(run.first_step - 1)
    ):
        validate(run, display, next_step=next_step, seconds=seconds)

    with StepLog(run.folder, fabric=fabric) as log, stop_requests() as requests:
        batches = iter(run.loader)
        began = time.perf_counter()
        while next_step < len(plan):
            # Step: the plan says which rate and norm group; its shape comes with the clips.
            step = plan[next_step]
            set_learning_rate(run.optimizer, step.learning_rate)
            if step.norm_group != norm_group:
                norm_group = step.norm_group
                set_norm_group(network, norm_group)

            # Forward and backward, micro-batch by micro-batch.
            loss = torch.zeros((), device=fabric.device)
            waited = 0.0
            for micro in range(config.accumulate):
                asked = time.perf_counter()
                batch = next(batches).to(fabric.device)
                waited += time.perf_counter() - asked
                generator.manual_seed(int(seeds[next_step * config.accumulate + micro]))
                is_last = micro == config.accumulate - 1
                with fabric.no_backward_sync(run.model, enabled=not is_last):  # type: ignore[arg-type]
                    clips = normalize(batch.clips, memory_format=layout)  # (B / parts, 3, T, H, W)
                    scores = run.model(clips)  # (B / parts, classes)
                    part = loss_of(scores, batch.labels) / config.accumulate
                    fabric.backward(part)
                loss += part.detach()

            # Update.
            commit_statistics(network)
            run.optimizer.step()
            run.optimizer.zero_grad(set_to_none=True)
            next_step += 1

            # Account: losses are read several at a time, because reading one waits for the device.
            validates = next_step in validation_steps
            flushes = next_step % _FLUSH_STEPS == 0 or validates
            if fabric.device.type == "cuda" and flushes:
                torch.cuda.synchronize()  # so that the seconds of these steps are those of the work
            step_seconds = time.perf_counter() - began
            began += step_seconds
            seconds += step_seconds
            log.add(step, loss, seconds=seconds, step_seconds=step_seconds, waited=waited)
            display.step(step, seconds=step_seconds)
            if flushes:
                check_losses(log.flush())
                run.folder.add_bad_videos(run.loader.bad_videos, run.val_loader.bad_videos)
            if next_step == plan.phases[step.phase].end_step:
                stats = run.loader.take_stats()
                run.folder.add_phase(step.phase, stats)
                display.end_of_phase(stats)

            # Checkpoint and validate.
            if validates:
                paused = time.perf_counter()
                if next_step == len(plan):
                    estimate_norms(run.model, config, run.train_videos, fabric)
                save(run, next_step=next_step, seconds=seconds)
                validate(run, display, next_step=next_step, seconds=seconds)
                began = time.perf_counter()
                run.loader.leave_out(began - paused)

            # Stop if any process was asked to; several agree when they exchange losses.
            votes = (flushes or fabric.world_size == 1) and next_step < len(plan)
            if votes and any_process(bool(requests), fabric):
                check_losses(log.flush())
                save(run, next_step=next_step, seconds=seconds)
                raise KeyboardInterrupt(f"stopped after step {next_step} of {len(plan)}")


def check_losses(rows: Sequence[dict[str, Any]]) -> None:
    """Raise ValueError if a loss is not finite: nothing that comes after it is worth computing."""
    for row in rows:
        if not math.isfinite(row["loss"]):
            raise ValueError(
                f"step {row['step']}: the loss is {row['loss']} at rate {row['learning_rate']:g}; "
                f"use a smaller --baseline.learning_rate.base, a longer warm-up, or full precision "
                f"if it is mixed"
            )


def save(run: Run, *, next_step: int, seconds: float) -> None:
    """Write a checkpoint, from the first process."""
    if run.fabric.is_global_zero:
        save_checkpoint(
            run.folder.checkpoint,
            model=run.network,
            optimizer=run.optimizer,
            next_step=next_step,
            seconds=seconds,
            config=run.config,
            manifest=run.manifest,
        )


def validate(run: Run, display: Display, *, next_step: int, seconds: float) -> None:
    """Score the validation videos and write the row."""
    began = time.perf_counter()
    scores = evaluate(run.network, run.val_loader, run.val_videos, fabric=run.fabric)
    took = time.perf_counter() - began
    row = {"step": next_step - 1, "seconds": seconds, "validation_seconds": took, **scores}
    run.folder.add_validation(row)
    display.validation(row)


def finish(run: Run) -> dict[str, Any]:
    """Write the totals of a complete run and return them on every process."""
    bad_videos = run.folder.add_bad_videos(run.loader.bad_videos, run.val_loader.bad_videos)
    of_all = united(bad_videos, run.fabric)
    run.folder.unite_bad_videos(of_all)
    return from_first(run.fabric, lambda: run.folder.finish(run.plan, num_bad_videos=len(of_all)))


def _evenly_spaced(num_steps: int, times: int) -> set[int]:
    """Numbers of done steps after which to validate; the last is ``num_steps``."""
    return {max(1, num_steps * k // times) for k in range(1, times + 1)}


def _default_generator(device: torch.device) -> torch.Generator:
    """The generator that dropout on ``device`` draws from.

    Seeding it costs microseconds; ``torch.manual_seed``, which visits every kind of device, costs
    most of a millisecond.
    """
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]
    return torch.default_generator
