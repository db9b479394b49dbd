"""What a run will take, said before its first step: every phase, validations, in all.

In: a run with its measured step times. Out: lines of text, for 80 columns.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from vcycle.config.fitting import smaller
from vcycle.config.sizing import epochs_text
from vcycle.data.decode.kept import decoded_bytes
from vcycle.data.loader_stats import workers_for
from vcycle.evaluate.loaders import num_decoding
from vcycle.schedule.messages import counted, duration
from vcycle.train.activity import Activity
from vcycle.train.measure.timing import MANY_SECONDS, RunSeconds
from vcycle.train.preparing import measure_preparing
from vcycle.train.start import Run

_WAITING_SHARE = 0.1
_WORTH_SHARE = 0.05
_LONG_SECONDS = 600.0
"""Of a run: a shorter one has too little to save for what measuring it takes."""


def say_prediction(run: Run, activity: Activity) -> None:
    """Print what the run will take, and what to do if that is days or the loader's doing."""
    if not run.fabric.is_global_zero:
        return
    for line in prediction_lines(run):
        activity.say(line)
    if run.measured.times.waiting_share(run.plan) <= _WAITING_SHARE:
        return
    activity.say(_waiting_line(run))
    if not run.decodes_fast and run.prediction.total > _LONG_SECONDS:
        activity.begin("measuring what prepared videos would save")
        for line in _preparing_lines(run):
            activity.say(line)


def prediction_lines(run: Run) -> list[str]:
    """A line for each phase, one for all, and advice on a long run."""
    prediction, plan = run.prediction, run.plan
    digits = len(str(len(plan.phases)))
    lines = ["Predicted from measured steps:"]
    for number, (phase, seconds) in enumerate(zip(plan.phases, prediction.phases, strict=True), 1):
        base = f"{phase.base.batch_size} x {phase.base.shape}"
        lines.append(
            f"  phase {number:>{digits}}/{len(plan.phases)}  {phase.kind:<11}  {base:<18}"
            f"{phase.steps:>7,} steps  {duration(seconds):>10}"
        )
    times = min(run.config.evaluation.times, len(plan))
    validations = counted(times, "validation")
    if run.config.evaluation.precise_bn and run.measured.times.has_norms:
        validations += " with norm statistics"
    if run.config.final is not None:
        validations += " and the final evaluation"
    device = "CPU" if run.fabric.device.type == "cpu" else "GPU"
    epochs = epochs_text(plan.epochs)
    lines.append(
        f"In all {duration(prediction.total)} on the {device}: {epochs} epochs in "
        f"{duration(prediction.steps)}, {validations} in {duration(prediction.validations)}"
    )
    lines += _beside_baseline(run)
    if run.first_step:
        lines.append(f"Going on from step {run.first_step} of {len(plan)}")
    return [*lines, *memory_lines(run), *_advice(prediction, run, device)]


def _beside_baseline(run: Run) -> list[str]:
    """How long the steps of the plain baseline would take; nothing for a run that is one."""
    if len(run.plan.shapes) == 1 and not run.plan.drops_tokens:
        return []
    off = replace(run.config.multigrid.with_schedule("off"), steps=None)
    try:
        plan = replace(run.config, multigrid=off).plan()
    except ValueError:  # norm groups divide the plan's batches, and not the baseline's
        return []
    seconds, own = run.measured.times.plan(plan), run.prediction.steps
    line = f"The {len(plan):,} steps of its baseline would take {duration(seconds)}"
    if own < seconds:
        return [f"{line}, {seconds / own:.1f} times as long"]
    return [f"{line}, which is no more: --schedule off trains those"]


def _advice(prediction: RunSeconds, run: Run, device: str) -> list[str]:
    lines = []
    if prediction.total > MANY_SECONDS:
        is_smaller = f": smaller is {flags}" if (flags := smaller(run.config)) else ""
        lines.append(
            f"{duration(prediction.total)} on the {device}{is_smaller}; --time 2h gives the plan "
            f"that fits two hours"
        )
    if device == "GPU" and run.config.precision == "32-true":
        lines.append("strict float32 is slow on a GPU: --precision bf16-mixed, or tf32")
    return lines


def _waiting_line(run: Run) -> str:
    """Where decoding cannot keep up, and what to do about it."""
    times = run.measured.times
    shape, taken, decoded = times.slowest_to_decode(run.plan)
    can = f"{times.workers} workers decode" if times.workers > 1 else "one process decodes"
    share = f"{times.waiting_share(run.plan):.0%} of that"
    if times.shared_cores:
        return f"{share} goes into decoding, on the cores that the model computes on"
    needed = workers_for(1 / decoded, 1 / taken)
    more = f"--data.num_workers {needed} on as many cores would keep up"
    if (kept := run.loader.dataset.kept) is not None:
        room = kept.max_bytes * num_decoding(run.config.data)
        if needed * decoded_bytes(run.train_videos.videos) > room:
            more += ", with memory and --data.frames_gib for their frames"
    return (
        f"{share} is waiting for clips: at {shape} the model takes {taken:,.0f} a second, {can} "
        f"{decoded * max(times.workers, 1):,.0f}; {more}"
    )


def _preparing_lines(run: Run) -> list[str]:
    """What preparing the videos would save, as measured on two of them, and the command."""
    saving = measure_preparing(
        run.config, run.measured.times, run.train_videos, val_videos=len(run.val_videos)
    )
    if saving is None:
        return []
    faster = f"measured on two videos, prepared ones decode {saving.speedup:.1f} times as fast"
    if saving.saved < _WORTH_SHARE * run.prediction.total:
        return [f"{faster}, which would save little"]
    root = shlex.quote(str(run.manifest.root))
    prepared = shlex.quote(f"{run.manifest.root}-prepared")
    return [
        f"{faster}: about {duration(saving.saved)} less a run, for {duration(saving.spent)} once; "
        f"then train on {prepared}:",
        f"  vcycle data prepare {root} {prepared}",
    ]


def memory_lines(run: Run) -> list[str]:
    """Batches that are cut in pieces to fit, the memory of a GPU by batch, that of kept frames."""
    lines = [
        f"{kind.batch_size} x {kind.shape} goes through the model in {count} pieces, to fit"
        for kind, count in run.measured.pieces.found(run.plan).items()
    ]
    peaks = [
        f"{kind.batch_size} x {kind.shape} {num_bytes / 2**30:.3g}"
        for kind, num_bytes in run.measured.peak_bytes.items()
    ]
    lines += [f"Peak memory, GiB: {', '.join(peaks)}"] if peaks else []
    if run.loader.dataset.kept is not None:
        number = num_decoding(run.config.data)
        by = "the process that decodes" if number == 1 else f"each of {number} processes"
        gib = number * decoded_bytes(run.train_videos.videos) / 2**30
        lines.append(f"Decoded frames are kept by {by}, at most about {gib:.2g} GiB in all")
    return lines
