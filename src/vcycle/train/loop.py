"""The training loop, top to bottom.

In: a RunConfig and a folder. Out: that folder, filled (see run_folder), and the run's result. The
plan says what each step is; the loop does it. Nothing is rebuilt at a phase change: the rate and
the norm group come from the step, the shape comes with the clips.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch.nn import functional as F

from vcycle.config.run import RunConfig
from vcycle.data.batch import normalize
from vcycle.data.randomness import indexed_seeds
from vcycle.evaluate.evaluate import evaluate
from vcycle.models import commit_statistics, memory_format, set_norm_group
from vcycle.train.checkpoint import check_videos, load_checkpoint, save_checkpoint
from vcycle.train.optim import set_learning_rate
from vcycle.train.progress import Display
from vcycle.train.rehearsal import rehearse
from vcycle.train.run_folder import RunFolder
from vcycle.train.setup import (
    check_parts,
    default_generator,
    estimate_norms,
    make_eval_loader,
    make_fabric,
    make_model,
    make_train_loader,
    read_manifest,
)

# Reading a loss waits for the device, so losses are read and written this many steps at a time.
_FLUSH_STEPS = 10
# torchrun passes on the Ctrl-C that its processes have had from the terminal.
_ECHO_SECONDS = 2.0


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
    what a user has to change, and where too many videos are bad or the loss is not finite;
    KeyboardInterrupt after Ctrl-C or SIGTERM, once the step under way is done and a checkpoint is
    written.
    """
    plan = config.plan()
    fabric = make_fabric(config)
    run = RunFolder(Path(folder), fabric=fabric)
    run.check(config, resume=resume)
    if resume and (done := run.result()) is not None:
        fabric.print(f"{folder}: complete, nothing is left to train")
        return done
    manifest = read_manifest(config)
    train_videos, val_videos = manifest.split("train"), manifest.split("val")
    if len(train_videos) != config.baseline.num_videos:
        fabric.print(
            f"{config.recipe}: {len(train_videos)} training videos; the plan counts its epochs in "
            f"{config.baseline.num_videos} (--baseline.num_videos)"
        )
    model, optimizer = make_model(config, manifest, fabric, fresh=not resume)
    check_parts(config, plan, model, fabric)
    next_step, seconds = 0, 0.0
    if resume:
        state = load_checkpoint(run.checkpoint)
        check_videos(state, manifest)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        next_step, seconds = state["next_step"], state["seconds"]
        del state
    loader = make_train_loader(config, plan, train_videos, fabric, first_step=next_step)
    val_loader = make_eval_loader(config, val_videos, fabric)
    run.bad_videos = (loader.bad_videos, val_loader.bad_videos)
    rehearse(model, plan, config, fabric=fabric, num_classes=manifest.num_classes)
    run.start(config, plan, first_step=next_step)

    def validate() -> None:
        began = time.perf_counter()
        scores = evaluate(model, val_loader, val_videos, fabric=fabric)
        took = time.perf_counter() - began
        row = {"step": next_step - 1, "seconds": seconds, "validation_seconds": took, **scores}
        run.add_validation(row)
        display.validation(row)

    def save() -> None:
        run.flush()
        if fabric.is_global_zero:
            save_checkpoint(
                run.checkpoint,
                model=model,
                optimizer=optimizer.optimizer,
                next_step=next_step,
                seconds=seconds,
                config=config,
                manifest=manifest,
            )

    loss_of = F.binary_cross_entropy_with_logits if manifest.multi_label else F.cross_entropy
    # Dropout is indexed by the step, so that a resumed run draws what an uninterrupted one does.
    generator = default_generator(fabric.device)
    positions = np.arange(len(plan) * config.accumulate)
    seeds = indexed_seeds(config.seed, f"model/{fabric.global_rank}", positions)
    validation_steps = _evenly_spaced(len(plan), config.evaluation.times)
    layout = memory_format(model)
    norm_group: int | None = None
    set_norm_group(model, norm_group)
    batches = iter(loader)
    console = (console or Console()) if fabric.is_global_zero else Console(quiet=True)
    display = Display(plan, title=title or config.recipe, first_step=next_step, console=console)
    with closing(loader), closing(val_loader), run, display, _stop_requests() as stop_requests:
        if next_step in validation_steps and not run.has_validation(next_step - 1):
            validate()  # the run stopped between this checkpoint and its validation
        began = time.perf_counter()
        while next_step < len(plan):
            step = plan[next_step]
            set_learning_rate(optimizer.optimizer, step.learning_rate)
            if step.norm_group != norm_group:
                norm_group = step.norm_group
                set_norm_group(model, norm_group)
            loss = torch.zeros((), device=fabric.device)
            waited = 0.0
            for micro in range(config.accumulate):
                asked = time.perf_counter()
                batch = next(batches).to(fabric.device)
                waited += time.perf_counter() - asked
                generator.manual_seed(int(seeds[next_step * config.accumulate + micro]))
                is_last = micro == config.accumulate - 1
                with fabric.no_backward_sync(model, enabled=not is_last):
                    clips = normalize(batch.clips, memory_format=layout)
                    scores = model(clips)  # (B / parts, classes)
                    part = loss_of(scores, batch.labels) / config.accumulate
                    fabric.backward(part)
                loss += part.detach()
            commit_statistics(model)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

            next_step += 1
            if fabric.device.type == "cuda" and (
                next_step % _FLUSH_STEPS == 0 or next_step in validation_steps
            ):
                torch.cuda.synchronize()  # so that the seconds of these steps are those of the work
            step_seconds = time.perf_counter() - began
            began += step_seconds
            seconds += step_seconds
            run.add_step(step, loss, seconds=seconds, step_seconds=step_seconds, waited=waited)
            display.step(step, seconds=step_seconds)
            if next_step % _FLUSH_STEPS == 0:
                run.flush()
            if next_step == plan.phases[step.phase].end_step:
                stats = loader.take_stats()
                run.add_phase(step.phase, stats)
                display.end_of_phase(stats)
            if next_step in validation_steps:
                paused = time.perf_counter()
                if next_step == len(plan):
                    estimate_norms(model, config, train_videos, fabric)
                save()
                validate()
                began = time.perf_counter()
                loader.leave_out(began - paused)
            if next_step < len(plan) and _any_process(bool(stop_requests), next_step, fabric):
                save()
                raise KeyboardInterrupt(f"stopped after step {next_step} of {len(plan)}")
        return run.finish(plan)


def _evenly_spaced(num_steps: int, times: int) -> set[int]:
    """Numbers of done steps after which to validate; the last is ``num_steps``."""
    return {max(1, num_steps * k // times) for k in range(1, times + 1)}


@contextmanager
def _stop_requests() -> Iterator[list[float]]:
    """Collect Ctrl-C and SIGTERM, so that a step is never cut in half; a later one is not held."""
    received: list[float] = []

    def keep(_number: int, _frame: object) -> None:
        now = time.monotonic()
        if received and now > received[0] + _ECHO_SECONDS:
            raise KeyboardInterrupt
        received.append(now)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.signal(number, keep) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _any_process(stopping: bool, next_step: int, fabric: Fabric) -> bool:
    """Whether any process was asked to stop; with several, they agree at every flush."""
    if fabric.world_size == 1:
        return stopping
    if next_step % _FLUSH_STEPS:
        return False
    votes = torch.tensor(float(stopping), device=fabric.device)
    torch.distributed.all_reduce(votes)
    return votes.item() > 0
