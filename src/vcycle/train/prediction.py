"""What a run will take, said before its first step: every phase, validations, in all.

In: a run with its measured step times. Out: lines of text, for 80 columns.
"""

from __future__ import annotations

from vcycle.train.activity import Activity
from vcycle.train.progress import duration
from vcycle.train.start import Run
from vcycle.train.timing import Prediction, smaller

DAY_SECONDS = 24 * 3600.0
_WAITING_SHARE = 0.1


def say_prediction(run: Run, activity: Activity) -> None:
    """Print what the run will take, and what to do if that is days or the loader's doing."""
    for line in prediction_lines(run):
        activity.say(line)


def prediction_lines(run: Run) -> list[str]:
    """A line for each phase, one for all, and advice if there is any."""
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
    return [*lines, *_advice(run, prediction, device)]


def _advice(run: Run, prediction: Prediction, device: str) -> list[str]:
    lines = []
    if prediction.total > DAY_SECONDS:
        days = prediction.total / DAY_SECONDS
        lines.append(f"{days:.1f} days on the {device}: smaller is {smaller(run.config)}; ")
        lines[-1] += "--time 2h gives the plan that fits two hours"
    share = run.times.waiting_share(run.plan)
    if share > _WAITING_SHARE and not is_prepared(run):
        prepared = f"{run.manifest.root}-prepared"
        lines.append(
            f"{share:.0%} of that is waiting for clips: vcycle data prepare {run.manifest.root} "
            f"{prepared}, then train on {prepared}"
        )
    return lines


def is_prepared(run: Run) -> bool:
    """Whether ``vcycle data prepare`` has rewritten the run's videos."""
    return (run.manifest.root / "prepared.json").exists()
