"""The training loop, top to bottom.

In: a Run, as ``start`` built it. Out: its model trained, and its folder filled (see run_folder).
The plan says what each step is; the loop does it. Nothing is rebuilt at a phase change: the rate
and the norm group come from the step, the shape comes with the clips.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.batch import Batch
from vcycle.data.loader import Loader
from vcycle.data.loader_stats import LoaderStats
from vcycle.data.randomness import indexed_seeds
from vcycle.devices.agreement import Votes, from_first, united
from vcycle.devices.buffers import share_buffers
from vcycle.devices.processes import Stopped
from vcycle.evaluate.checkpoint import FORMAT
from vcycle.evaluate.evaluate import score_videos, summary
from vcycle.evaluate.norms import estimate_norms
from vcycle.evaluate.scores_file import write_scores
from vcycle.evaluate.trained_model import TrainedModel
from vcycle.models import commit_statistics, set_norm_group, set_token_share
from vcycle.models.wrapped import inner_optimizer
from vcycle.train.augment import augment
from vcycle.train.checkpoint import link, write_checkpoint
from vcycle.train.clock import clock_of
from vcycle.train.gradients import Gradients
from vcycle.train.nonfinite import BuffersBefore, NonFinite
from vcycle.train.optim import clip_gradients
from vcycle.train.optimizer_watch import watch
from vcycle.train.progress import Display
from vcycle.train.rates import set_learning_rate
from vcycle.train.start import Run
from vcycle.train.step_log import StepLog

_FLUSH_STEPS = 10  # of which losses are read and written together


def loop(run: Run, display: Display, stop_requests: Sequence[float]) -> None:
    """Train the steps that are left, with the validations and checkpoints among them."""
    config, plan, fabric, network = run.config, run.plan, run.fabric, run.network
    multi_label = run.manifest.multi_label
    gradients = Gradients(
        network, run.model, config, run.measured.pieces, fabric=fabric, multi_label=multi_label
    )
    # What else a model draws is indexed by the micro-batch: with as many a resumed run draws alike.
    positions = np.arange(len(plan) * config.micro_batches)
    seeds = indexed_seeds(config.seed, f"model/{fabric.global_rank}", positions)
    seeds = seeds.reshape(len(plan), config.micro_batches)
    validation_steps = _evenly_spaced(len(plan), config.evaluation.times)
    next_step = run.first_step

    # The run may have stopped between this checkpoint and what follows it.
    if next_step == len(plan) and config.evaluation.precise_bn and not run.has_norms:
        finish_norms(run, display, stop_requests, seconds=run.first_seconds)
    if next_step in validation_steps and not from_first(
        fabric, lambda: run.folder.has_validation(run.first_step - 1)
    ):
        validate(run, display, stop_requests, next_step=next_step, seconds=run.first_seconds)

    votes = Votes(fabric, first_step=next_step)
    nonfinite = NonFinite(run)
    buffers = BuffersBefore(network) if config.nonfinite == "skip" else None
    loaders, num_bad = (run.loader, run.val_loader), 0
    saved = time.monotonic()
    clock = clock_of(fabric.device)
    updates = watch(inner_optimizer(run.optimizer))
    batches = iter(run.loader)
    waits: list[tuple[Any, Any]] = []

    records = gradients.recorder is not None
    held: Batch | None = None

    def load() -> Batch:
        """The next batch; the same again after one that memory did not hold."""
        nonlocal held
        asked = clock.now()
        if held is None:
            held = next(batches)
        batch = held.to(fabric.device)
        waits.append((asked, clock.now()))
        batch = augment(batch, config.augmentation, num_classes=run.manifest.num_classes)
        held = None
        return batch

    with StepLog(run.folder, fabric=fabric, clock=clock, first_seconds=run.first_seconds) as log:

        def keep_steps() -> None:
            """Write a checkpoint before the run ends in an error of its videos."""
            nonfinite.account(log.flush(waits=True))
            nonfinite.check_weights(next_step=next_step)
            save(run, next_step=next_step, seconds=log.seconds)

        began = clock.now()
        while next_step < len(plan):
            # Step: the plan says which rate and norm group; its shape comes with the clips.
            step = plan[next_step]
            set_learning_rate(run.optimizer, step.learning_rate)
            set_norm_group(network, step.norm_group)
            set_token_share(network, step.token_share)
            if buffers is not None:
                buffers.keep()

            # Forward and backward, micro-batch by micro-batch.
            waits = []
            try:
                loss = gradients.step(step, seeds[next_step].tolist(), load)  # and how many right
            except TooManyBadVideos:  # of this process: others may not know yet
                is_whole = fabric.world_size == config.micro_batches == 1
                if is_whole and next_step > run.first_step:
                    keep_steps()
                raise
            records = _still_records(gradients, records, display)

            # Update, unless a step that is not finite is to leave no trace.
            num_updates = updates.num_steps
            gradient_norm: Tensor | None = None
            if buffers is None or nonfinite.may_update(loss[0]):
                # A gradient scaler that has unscaled gradients, to clip them, must step next.
                gradient_norm = clip_gradients(
                    fabric, run.model, run.optimizer, longest=config.optimizer.clip_norm
                )
                commit_statistics(network)
                run.optimizer.step()  # which a gradient scaler skips if gradients overflow
            else:
                buffers.restore()
            is_skipped = updates.num_steps == num_updates
            if run.average is not None and not is_skipped:
                run.average.update_parameters(network)
            run.optimizer.zero_grad(set_to_none=True)
            next_step += 1

            # Agree with the other processes on what comes before the next step.
            validates = next_step in validation_steps
            is_due = 0 < 60 * config.checkpoint.minutes <= time.monotonic() - saved
            found = sum(len(each.bad_videos) for each in loaders)
            stops, saves, found_bad = votes.hold(
                next_step, bool(stop_requests) and next_step < len(plan), is_due, found > num_bad
            )
            saves |= stops or validates
            saves |= config.checkpoint.steps > 0 and next_step % config.checkpoint.steps == 0

            # Account: losses are read several at a time, because reading one waits for the device.
            ended = clock.now()
            display.launch(step)
            log.add(
                step,
                loss,
                began=began,
                waits=waits,
                ended=ended,
                left=display.seconds_left(),
                gradient_norm=gradient_norm,
                is_skipped=is_skipped,
            )
            began = ended
            ends_phase = next_step == plan.phases[step.phase].end_step
            if saves or ends_phase or next_step % _FLUSH_STEPS == 0:
                losses = log.flush(waits=saves or ends_phase)
                display.training(losses)
                # A loss that is not finite raises here, before any checkpoint is written.
                for line in nonfinite.account(losses):
                    display.say(line)
            for each in log.take_times():
                display.step(each)
            if found_bad:
                try:
                    share_bad_videos(run, *loaders)
                except TooManyBadVideos:  # in all processes alike, after the step
                    keep_steps()
                    raise
                num_bad = sum(len(each.bad_videos) for each in loaders)
            if ends_phase:
                clips, took, waited = log.take_phase()
                stats = LoaderStats(
                    num_workers=run.loader.num_workers,
                    num_clips=clips,
                    wait_seconds=waited,
                    use_seconds=took - waited,
                    work_seconds=run.loader.take_work_seconds(),
                    decodes_fast=run.decodes_fast,
                    left_share=run.loader.take_left_share(),
                )
                run.folder.add_phase(step.phase, stats)
                display.end_of_phase(stats)

            # Checkpoint and validate; neither is time of a step.
            if saves:
                display.doing("writing a checkpoint")
                nonfinite.check_weights(next_step=next_step)
                save(run, next_step=next_step, seconds=log.seconds)
                if next_step == len(plan) and config.evaluation.precise_bn:
                    finish = partial(finish_norms, run, display, stop_requests, seconds=log.seconds)
                    gradients.with_room(finish)
                saved = time.monotonic()
                if validates and not stops:
                    score = partial(validate, run, display, stop_requests, next_step=next_step)
                    gradients.with_room(partial(score, seconds=log.seconds))
                began = clock.now()

            # Stop, as any process was asked to.
            if stops:
                fabric.barrier()  # until the checkpoint is written
                raise Stopped(f"stopped after step {next_step} of {len(plan)}")


def _still_records(gradients: Gradients, did: bool, display: Display) -> bool:
    """Whether steps are replayed from recordings; says so, once, if they no longer are."""
    does = gradients.recorder is not None and not gradients.recorder.gave_up
    if did and not does:
        display.say(
            "CUDA graphs: memory ran short, and they have given theirs back; steps are launched "
            "operation by operation from here on, which may take longer"
        )
    return does


def share_bad_videos(run: Run, *loaders: Loader) -> None:
    """Count the videos that any process could not read in every process, and list them.

    Raises TooManyBadVideos, a ValueError, if they are together more than the run accepts.
    """
    of_all = [united(each.bad_videos, run.fabric) for each in loaders]
    run.folder.add_bad_videos({name: why for each in of_all for name, why in each.items()})
    for loader, bad in zip(loaders, of_all, strict=True):
        loader.add_bad_videos(bad)


def finish_norms(
    run: Run, display: Display, stop_requests: Sequence[float], *, seconds: float
) -> None:
    """Estimate the norm statistics of the last step's weights, and write its checkpoint again.

    Raises Stopped between two batches if any process is asked to stop: a run that goes on from the
    checkpoint begins them again.
    """
    display.doing("estimating norm statistics")

    def estimate(model: nn.Module) -> dict[str, str]:
        return estimate_norms(
            model,
            run.config,
            run.train_videos,
            run.fabric,
            asked_to_stop=lambda: bool(stop_requests),
        )

    with _stopped_before("its norm statistics were estimated", run, next_step=len(run.plan)):
        bad = estimate(run.model)
        if run.average is not None:
            with run.fabric.autocast():
                bad |= estimate(run.validated)
    run.folder.add_bad_videos(bad)
    save(run, next_step=len(run.plan), seconds=seconds, has_norms=True)


def save(run: Run, *, next_step: int, seconds: float, has_norms: bool = False) -> None:
    """Write a checkpoint, from the first process."""
    if not run.fabric.is_global_zero:
        return
    state = {
        "format": FORMAT,
        "model": run.network.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "scaler": run.fabric.strategy.precision.state_dict(),  # of gradients; empty without one
        "next_step": next_step,
        "seconds": seconds,
        "trained": TrainedModel.of_run(run.config, run.manifest, steps=next_step).to_dict(),
        "config": asdict(run.config),
        "plan": run.plan.to_dict(),
        "manifest": run.dataset,
        "has_norms": has_norms,
    }
    if run.average is not None:
        state["ema"] = run.average.state()
    run.folder.sync_rows()
    write_checkpoint(run.folder.path, state, keep=run.config.checkpoint.keep)


def validate(
    run: Run,
    display: Display,
    stop_requests: Sequence[float],
    *,
    next_step: int,
    seconds: float,
) -> None:
    """Score the validation videos and write the row.

    Raises Stopped between two batches if any process is asked to stop: the checkpoint is written,
    and a run that goes on from there validates again.
    """
    began = time.perf_counter()
    display.doing(f"validating on {len(run.val_videos)} videos")
    share_buffers(run.validated, run.fabric)  # those of the checkpoint
    with _stopped_before("its validation ended", run, next_step=next_step):
        scored = score_videos(
            run.validated,
            run.val_loader,
            run.val_videos,
            fabric=run.fabric,
            asked_to_stop=lambda: bool(stop_requests),
        )
    scores = summary(scored, run.val_videos)
    took = time.perf_counter() - began
    row = {"step": next_step - 1, "seconds": seconds, "validation_seconds": took, **scores}
    if run.fabric.is_global_zero and run.folder.is_best(scores):
        # Before the row is there: a run that is killed in between validates again.
        link(run.folder.path / "checkpoint", run.folder.path / "best")
    if run.fabric.is_global_zero and next_step == len(run.plan):
        write_scores(run.folder.path / "scores.csv", scored, run.val_videos)
    run.folder.add_validation(row)
    display.validation(row)


@contextmanager
def _stopped_before(end: str, run: Run, *, next_step: int) -> Iterator[None]:
    """Say of a stop in the body which step it came after, and before the end of what."""
    try:
        yield
    except Stopped:
        raise Stopped(f"stopped after step {next_step} of {len(run.plan)}, before {end}") from None


def _evenly_spaced(num_steps: int, times: int) -> set[int]:
    """Numbers of done steps after which to validate; the last is ``num_steps``."""
    times = min(times, num_steps)
    return {max(1, num_steps * k // times) for k in range(1, times + 1)}
