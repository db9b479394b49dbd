"""What a run will take, said before its first step: every phase, validations, in all.

In: a run with its measured step times. Out: lines of text, for 80 columns.
"""

from __future__ import annotations

from vcycle.config.decoding import needed_workers
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
    return [*lines, *memory_lines(run), *_advice(run, prediction, device)]


def _advice(run: Run, prediction: Prediction, device: str) -> list[str]:
    lines = []
    if prediction.total > DAY_SECONDS:
        days = prediction.total / DAY_SECONDS
        lines.append(f"{days:.1f} days on the {device}: smaller is {smaller(run.config)}; ")
        lines[-1] += "--time 2h gives the plan that fits two hours"
    if run.times.waiting_share(run.plan) > _WAITING_SHARE:
        lines.append(_decoding(run))
    if device == "GPU" and run.config.precision == "32-true":
        lines.append("strict float32 is slow on a GPU: --precision bf16-mixed, or tf32")
    return lines


def _decoding(run: Run) -> str:
    """Where decoding cannot keep up, and what to do about it."""
    times = run.times
    shape, taken, decoded = times.slowest_to_decode(run.plan)
    can = f"{times.workers} workers decode" if times.workers > 1 else "one process decodes"
    line = (
        f"{times.waiting_share(run.plan):.0%} of that is waiting for clips: at {shape} the model "
        f"takes {taken:,.0f} a second, {can} {decoded * max(times.workers, 1):,.0f}"
    )
    fixes = []
    if not is_prepared(run):
        root = run.manifest.root
        fixes.append(f"vcycle data prepare {root} {root}-prepared, then train on {root}-prepared")
    if not times.shared_cores:
        needed = needed_workers(taken, 1 / decoded)
        fixes.append(f"--data.num_workers {needed} on as many cores")
    return f"{line}; {', or '.join(fixes)}" if fixes else line


def memory_lines(run: Run) -> list[str]:
    """The batches that are cut in pieces to fit, and a line of the memory of a GPU by batch."""
    lines = [
        f"{kind.batch_size} x {kind.shape} goes through the model in {count} pieces, to fit"
        for kind, count in run.pieces.found(run.plan).items()
    ]
    peaks = [
        f"{kind.batch_size} x {kind.shape} {num_bytes / 2**30:.3g}"
        for kind, num_bytes in run.peak_bytes.items()
    ]
    return [*lines, *([f"Peak memory, GiB: {', '.join(peaks)}"] if peaks else [])]


def is_prepared(run: Run) -> bool:
    """Whether ``vcycle data prepare`` has rewritten the run's videos."""
    return (run.manifest.root / "prepared.json").exists()
