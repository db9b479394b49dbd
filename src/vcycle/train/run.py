"""A run from its configuration to its result.

In: a RunConfig and a folder. Out: that folder, filled (see run_folder), and the run's totals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from vcycle.config.run import RunConfig
from vcycle.devices.agreement import from_first, gathered
from vcycle.devices.fabric import Fabric
from vcycle.devices.launch import make_fabric
from vcycle.devices.processes import Stopped, ending_together
from vcycle.models.count import multiply_adds_or_none
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape
from vcycle.train.activity import Activity
from vcycle.train.final import final_evaluation
from vcycle.train.live_logs import check_installed
from vcycle.train.loop import loop, share_bad_videos
from vcycle.train.measure.budget import Budget
from vcycle.train.origin import origin
from vcycle.train.prediction import say_prediction
from vcycle.train.progress import Display
from vcycle.train.run_folder import Resume, RunFolder
from vcycle.train.start import start
from vcycle.train.stop import stop_requests


def train(
    config: RunConfig,
    folder: str | Path,
    *,
    resume: Resume = False,
    title: str | None = None,
    console: Console | None = None,
    budget_seconds: float | None = None,
    dry_run: bool = False,
    describe: Callable[[RunConfig], str] | None = None,
    exits: bool = False,
) -> dict[str, Any]:
    """Train as ``config`` says; all that the run leaves behind is in ``folder``.

    Processes that torchrun started each call this alike. ``resume`` goes on from the newest
    checkpoint in ``folder``; "auto" also begins a run if there is none. A new run takes as many
    steps as fit into ``budget_seconds``, if given; ``describe`` says its plan in words. A
    ``dry_run`` measures and predicts, writes nothing and returns nothing. A caller that ``exits``
    once the run has stopped has SIGTERM ignored from then on.

    Returns the run's totals with its last validation; resuming a complete run returns them again.
    Raises ValueError before step 0 for what a user has to change, and later if too many videos are
    bad or the loss is not finite; KeyboardInterrupt after Ctrl-C or SIGTERM, once the step under
    way is done and a checkpoint is written, or after a batch of a validation, which is done again
    when the run goes on.
    """
    check_installed(config.log)
    budget = None if budget_seconds is None else Budget(budget_seconds, time.monotonic())
    fabric = make_fabric(config)
    with (
        ending_together(fabric, advice="the same command goes on from the newest checkpoint"),
        closing(RunFolder(Path(folder), rank=fabric.global_rank)) as files,
    ):
        begun = from_first(fabric, lambda: files.begin(config, resume=resume, dry_run=dry_run))
        if begun == "complete":
            fabric.print(f"{folder}: complete, nothing is left to train")
            return from_first(fabric, files.result)
        console = (console or Console()) if fabric.is_global_zero else Console(quiet=True)
        title = title or config.recipe
        with Activity(console) as activity:
            goes_on = begun == "resumed"
            run = start(config, files, fabric, resume=goes_on, activity=activity, budget=budget)
            if describe is not None:
                activity.say(describe(run.config))
            say_prediction(run, activity)
            if dry_run:
                return {}
            files.start(
                run.config,
                run.manifest,
                resumed=run.resumed,
                first_step=run.first_step,
                predicted_seconds=run.prediction.steps,
            )
            costs = _clip_multiply_adds(run.network, run.plan, fabric)
            files.describe(run.config, run.val_videos, costs)
            files.add_start(origin(fabric, first_step=run.first_step))
            files.open_logs(run.config)
        fabric.barrier()  # the first process alone measured and wrote: no part of a step
        display = Display(
            run.plan,
            run.measured.times.step,
            title=title,
            first_step=run.first_step,
            console=console,
            processes=fabric.world_size,
            multi_label=run.manifest.multi_label,
        )
        with (
            stop_requests(exits=exits, says=fabric.is_global_zero) as requests,
            closing(run.loader),
            closing(run.val_loader),
            display,
        ):
            try:
                loop(run, display, requests)
            except Exception as error:
                if requests and _is_of_compiler(error):  # Ctrl-C ends what it runs, too
                    raise Stopped("stopped while the network was compiled") from error
                raise
            finally:
                files.add_bad_videos({**run.loader.bad_videos, **run.val_loader.bad_videos})
            share_bad_videos(run, run.loader, run.val_loader)
            for loader in (run.loader, run.val_loader):  # which may take long enough to be stopped
                loader.close()
            if run.config.final is not None and any(gathered(bool(requests), fabric)):
                steps = len(run.plan)
                raise Stopped(f"stopped after step {steps} of {steps}, before its final evaluation")
        with Activity(console) as activity:
            final = final_evaluation(run, activity)
        longest = run.config.optimizer.clip_norm
        return from_first(fabric, lambda: files.finish(run.plan, final, clip_norm=longest))


def _is_of_compiler(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._inductor", "torch._dynamo"))


def _clip_multiply_adds(
    network: nn.Module, plan: Plan, fabric: Fabric
) -> dict[tuple[Shape, float], int]:
    """Of one clip of each shape and token share, forward; none if one of them is not counted."""
    counts: dict[tuple[Shape, float], int] = {}
    for clip in plan.clip_kinds if fabric.is_global_zero else ():
        count = multiply_adds_or_none(network, *clip)
        if count is None:
            return {}
        counts[clip] = count
    return counts
