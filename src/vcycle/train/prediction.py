"""What a run will take, said before its first step: every phase, validations, in all.

In: a run with its measured step times. Out: lines of text, for 80 columns.
"""

from __future__ import annotations

import shlex

from vcycle.train.activity import Activity
from vcycle.train.preparing import measure_preparing
from vcycle.train.progress import duration
from vcycle.train.start import Run
from vcycle.train.timing import smaller

DAY_SECONDS = 24 * 3600.0
_WAITING_SHARE = 0.1
_WORTH_SHARE = 0.05


def say_prediction(run: Run, activity: Activity) -> None:
    """Print what the run will take, and what to do if that is days or the loader's doing."""
    if not run.fabric.is_global_zero:
        return
    for line in prediction_lines(run):
        activity.say(line)
    if run.times.waiting_share(run.plan) > _WAITING_SHARE and not is_prepared(run):
        activity.begin("measuring what prepared videos would save")
        activity.say(_preparing_line(run))


def prediction_lines(run: Run) -> list[str]:
    """A line for each phase, one for all, and advice on a run of days."""
    prediction, plan = run.prediction, run.plan
    digits = len(str(len(plan.phases)))
    lines = ["Predicted from measured steps:"]
    for number, (phase, seconds) in enumerate(zip(plan.phases, prediction.phases, strict=True), 1):
        base = f"{phase.base.batch_size} x {phase.base.shape}"
        lines.append(
            f"  phase {number:>{digits}}/{len(plan.phases)}  {phase.kind:<11}  {base:<18}"
            f"{phase.steps:>7,} steps  {duration(seconds):>10}"
        )
    times = run.config.evaluation.times
    validations = f"{times} validations" if times > 1 else "1 validation"
    if run.config.final is not None:
        validations += " and the final evaluation"
    device = "CPU" if run.fabric.device.type == "cpu" else "GPU"
    lines.append(
        f"In all {duration(prediction.total)} on the {device}: {plan.epochs:.3g} epochs in "
        f"{duration(prediction.steps)}, {validations} in {duration(prediction.validations)}"
    )
    if run.first_step:
        lines.append(f"Going on from step {run.first_step} of {len(plan)}")
    if prediction.total > DAY_SECONDS:
        days = prediction.total / DAY_SECONDS
        lines.append(
            f"{days:.1f} days on the {device}: smaller is {smaller(run.config)}; --time 2h gives "
            f"the plan that fits two hours"
        )
    return lines


def _preparing_line(run: Run) -> str:
    """What waits for clips, what preparing the videos would change, and the command."""
    share = run.times.waiting_share(run.plan)
    waiting = f"{share:.0%} of that is waiting for clips"
    saving = measure_preparing(
        run.config, run.plan, run.times, run.train_videos, val_videos=len(run.val_videos)
    )
    if saving is None:
        return f"{waiting}: more workers (--data.num_workers) on more cores would help"
    faster = f"measured on two videos, prepared ones decode {saving.speedup:.1f} times as fast"
    if saving.saved < _WORTH_SHARE * run.prediction.total:
        return f"{waiting}; {faster}, which would save little"
    root = shlex.quote(str(run.manifest.root))
    prepared = shlex.quote(f"{run.manifest.root}-prepared")
    return (
        f"{waiting}; {faster}: about {duration(saving.saved)} less a run, for "
        f"{duration(saving.spent)} once: vcycle data prepare {root} {prepared}, then train on "
        f"{prepared}"
    )


def is_prepared(run: Run) -> bool:
    """Whether ``vcycle data prepare`` has rewritten the run's videos."""
    return (run.manifest.root / "prepared.json").exists()
