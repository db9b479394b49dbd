"""Runs on a folder of one's own videos, on 1 to 8 GPUs.

In: how many videos and GPUs. Out: a configuration whose notes give the reason for every number.
Each number is one of the paper's runs, scaled to the data set by a rule that the note states.
"""

from __future__ import annotations

import math

from vcycle.config.run import Model, RunConfig
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape

_MODEL = "slowfast_r50_8x8"
_GROUP = 8
"""Clips of a norm group (section 3.2)."""
_LARGEST_FACTOR = 16
"""Equation 1 at T/4 x H/2 x W/2, the smallest shape that the two cycles visit."""
_LEAST_STEPS = 8
"""Of an epoch, whatever the batch: fewer would make the order of the videos matter little."""


def finetune(*, num_videos: int | None = None, num_gpus: int = 1) -> RunConfig:
    """Your videos, SlowFast R50 from Kinetics weights, sized by their number and the GPUs'.

    Batch, rate and epochs follow the paper's two runs from Kinetics weights, on
    Something-Something V2 and on Charades. ValueError for other than 1 to 8 GPUs and for too few
    videos for them.
    """
    num_videos, notes = _assumed(num_videos)
    batch_size, batch_notes = _batch_size(num_videos, num_gpus)
    multigrid, cycle_notes = _cycles(num_videos, batch_size)
    epochs = _finetuning_epochs(num_videos)
    steps = math.ceil(epochs * num_videos / batch_size)
    baseline = Baseline(
        shape=Shape(32, 224, 224),
        batch_size=batch_size,
        steps=steps,
        num_videos=num_videos,
        learning_rate=LearningRate(0.03 * batch_size / 16, warmup_steps=steps * 4 // 57),
        stage_ends=(steps * 15 // 23, steps * 19 // 23),
    )
    notes += [
        *batch_notes,
        f"learning rate {baseline.learning_rate.base:g}: the paper's 0.03 at 16 clips on "
        f"Something-Something V2, in proportion to the batch; it drops at 15/23 and 19/23 there",
        "warm-up over 4/57 of the steps, as on Charades",
        f"{epochs} epochs: between 57 on Charades (8k videos) and 22 on Something-Something V2 "
        f"(169k), on the line through the two in logarithms, and within 15 to 100",
        *cycle_notes,
    ]
    return _run("finetune", baseline, multigrid, notes, pretrained=True)


def scratch(*, num_videos: int | None = None, num_gpus: int = 1) -> RunConfig:
    """Your videos, SlowFast R50 from random weights, sized by their number and the GPUs'.

    Batch, rate and epochs follow the paper's Kinetics run. ValueError for other than 1 to 8 GPUs
    and for too few videos for them.
    """
    num_videos, notes = _assumed(num_videos)
    batch_size, batch_notes = _batch_size(num_videos, num_gpus)
    multigrid, cycle_notes = _cycles(num_videos, batch_size)
    rate = 0.8 * batch_size / 512
    steps = math.ceil(239 * num_videos / batch_size)
    baseline = Baseline(
        shape=Shape(32, 224, 224),
        batch_size=batch_size,
        steps=steps,
        num_videos=num_videos,
        learning_rate=LearningRate(rate, warmup_steps=steps // 7, warmup_start=rate / 400),
        stage_ends=(steps * 44 // 112, steps * 72 // 112, steps * 92 // 112),
    )
    notes += [
        *batch_notes,
        f"learning rate {rate:g}: the paper's 0.8 at 512 clips on Kinetics, in proportion to the "
        f"batch; warm-up and drops at the same shares of the run",
        "239 epochs, as on Kinetics",
        *cycle_notes,
    ]
    if num_videos < 50_000:
        notes.append(
            f"{num_videos:,} videos are few to start from random weights: compare with finetune"
        )
    return _run("scratch", baseline, multigrid, notes, pretrained=False)


def _run(
    name: str, baseline: Baseline, multigrid: Multigrid, notes: list[str], *, pretrained: bool
) -> RunConfig:
    return RunConfig(
        recipe=name,
        baseline=baseline,
        multigrid=multigrid,
        model=Model(_MODEL, pretrained_on="kinetics400" if pretrained else None),
        notes=tuple(notes),
    )


def _assumed(num_videos: int | None) -> tuple[int, list[str]]:
    if num_videos is None:
        return 10_000, ["10,000 training videos are assumed: give --data.manifest or --num-videos"]
    if num_videos < _GROUP * _LEAST_STEPS:
        raise ValueError(
            f"num_videos {num_videos}: give at least {_GROUP * _LEAST_STEPS} training videos"
        )
    return num_videos, [f"{num_videos:,} training videos"]


def _batch_size(num_videos: int, num_gpus: int) -> tuple[int, list[str]]:
    """A norm group on each GPU: then every batch, a multiple of it, is shared in whole groups.

    ValueError where even this batch, which batch exponent 0 keeps, leaves an epoch too few steps.
    """
    if not 1 <= num_gpus <= 8:
        raise ValueError(f"num_gpus {num_gpus}: give 1 to 8; change baseline.batch_size for more")
    batch_size = _GROUP * num_gpus
    if batch_size * _LEAST_STEPS > num_videos:
        raise ValueError(
            f"num_gpus {num_gpus}: {num_videos:,} videos leave an epoch fewer than {_LEAST_STEPS} "
            f"steps of {batch_size} clips; use at most {num_videos // (_GROUP * _LEAST_STEPS)}"
        )
    gpus = "the GPU" if num_gpus == 1 else f"each of {num_gpus} GPUs"
    return batch_size, [f"batch size {batch_size}: a norm group of {_GROUP} clips on {gpus}"]


def _cycles(num_videos: int, batch_size: int) -> tuple[Multigrid, list[str]]:
    """The largest batch exponent of 1, 1/2, 0 whose largest batch leaves an epoch enough steps."""
    rule = Model(_MODEL).rule
    most = num_videos // (_LEAST_STEPS * batch_size)
    exponent = next((p for p in (1.0, 0.5) if _LARGEST_FACTOR**p <= most), 0.0)
    epoch_factor = 1.5 if exponent else 1.0
    multigrid = Multigrid(batch_exponent=exponent, epoch_factor=epoch_factor, rule=rule)
    if exponent == 1:
        return multigrid, []
    notes = [
        f"batch exponent {exponent:g}: equation 1 asks for {_LARGEST_FACTOR * batch_size} clips on "
        f"the smallest shape, more than an eighth of {num_videos:,} videos"
    ]
    if exponent == 0:
        notes.append("epoch factor 1: steps are as many as the baseline's, but cheaper")
    return multigrid, notes


def _finetuning_epochs(num_videos: int) -> int:
    """57 at Charades' 7,985 videos, 22 at Something-Something V2's 168,913, a power between."""
    power = math.log(22 / 57) / math.log(168_913 / 7_985)
    return min(100, max(15, round(57 * math.pow(num_videos / 7_985, power))))
