"""Runs on a folder of one's own videos, on 1 to 8 GPUs.

In: how many videos and GPUs, and what of the size is asked for. Out: a configuration whose notes
give the reason for every number. Each number is one of the paper's runs, scaled to the data set by
a rule that the note states, or what was asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vcycle.config.evidence import Evidence, from_other_weights, from_random_weights
from vcycle.config.run import Model, Optimizer, RunConfig
from vcycle.config.schedule_choice import planned
from vcycle.config.sizing import Asked, clips_in, epochs_text, rate_exponent, rate_rule, stage_ends
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.shape import Shape

_MODEL = "slowfast_r50_8x8"
_TITLES = {"adamw": "AdamW's", "muon": "Muon's", "sgd": "SGD's"}
_DECAYED = {
    "adamw": Optimizer("adamw", weight_decay=0.05),
    "muon": Optimizer("muon", weight_decay=0.05),
}
_GROUPS = (8, 4, 2)
"""Clips of a norm group: the paper's (section 3.2), and smaller ones for few videos."""
_LEAST_EPOCH = 7.5
"""Steps of an epoch, if the videos allow it: those of 60 videos in the study (docs/study.md)."""


@dataclass(frozen=True)
class _Size:
    """Videos of an epoch, clips of a step and of a norm group, and why."""

    num_videos: int
    batch_size: int
    norm_group: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Training:
    """Optimizer, its base rate, how that follows the batch, and why."""

    optimizer: Optimizer
    rate: float
    rate_exponent: float
    is_studied: bool
    note: str

    def learning_rate(self, steps: int, *, warmup_steps: int, start: float = 0.0) -> LearningRate:
        """Of the paper's run, or of the study's baselines for what it tried (docs/study.md)."""
        if self.is_studied:
            return LearningRate(
                self.rate, decay="cosine", warmup_steps=steps // 20, warmup_start=start * self.rate
            )
        return LearningRate(self.rate, warmup_steps=warmup_steps, warmup_start=start * self.rate)


def finetune(
    *,
    num_videos: int | None = None,
    num_gpus: int = 1,
    model: str = _MODEL,
    optimizer: str | None = None,
    asked: Asked = Asked(),
) -> RunConfig:
    """Your videos, from weights of another training, sized by their number.

    Batch, rate and epochs follow the paper's two runs from Kinetics weights, on
    Something-Something V2 and on Charades, unless asked for. A baseline's rate drops at 15/23 and
    19/23 of the steps, as on the first, after a warm-up over 4/57, as on the second. ``model`` and
    ``optimizer`` are names; some small networks take AdamW, at a rate of their own, and a
    baseline's falls along a cosine after a twentieth of the steps. Raises ValueError if there are
    other than 1 to 8 GPUs, or too few videos for them.
    """
    size = _size(num_videos, num_gpus, asked)
    epochs = _finetuning_epochs(size.num_videos)
    clips = clips_in(epochs, size.num_videos)
    steps = asked.steps_of(size.num_videos, size.batch_size, num_clips=clips)
    paper = (0.03, 16, "Something-Something V2")
    training = _training(model, optimizer, size, asked, paper=paper, preferred=("adamw",))
    baseline = Baseline(
        shape=Shape(32, 224, 224),
        batch_size=size.batch_size,
        steps=steps,
        num_videos=size.num_videos,
        learning_rate=training.learning_rate(steps, warmup_steps=steps * 4 // 57),
        stage_ends=stage_ends(steps, (15, 19), of=23),
    )
    steps_note = _epochs_note(baseline, asked) or (
        f"{epochs} epochs of the baseline: between 57 on Charades (8k videos) and 22 on "
        f"Something-Something V2 (169k), on the line through the two in logarithms, and within 15 "
        f"to 100"
    )
    evidence = from_other_weights(size.num_videos)
    config = _run("finetune", baseline, model, size, training, evidence, asked, steps_note)
    return replace(config, model=replace(config.model, pretrained_on="kinetics400"))


def scratch(
    *,
    num_videos: int | None = None,
    num_gpus: int = 1,
    model: str = _MODEL,
    optimizer: str | None = None,
    asked: Asked = Asked(),
) -> RunConfig:
    """Your videos, from random weights, sized by their number.

    Batch, rate and epochs follow the paper's Kinetics run, unless asked for, and warm-up and drops
    of a baseline's rate. ``model`` and ``optimizer`` are names; some small networks take Muon or
    AdamW, at a rate of their own, and a baseline's falls along a cosine after a twentieth of the
    steps. Raises ValueError if there are other than 1 to 8 GPUs, or too few videos for them.
    """
    size = _size(num_videos, num_gpus, asked)
    clips = clips_in(239, size.num_videos)
    steps = asked.steps_of(size.num_videos, size.batch_size, num_clips=clips)
    paper = (0.8, 512, "Kinetics")
    preferred = ("muon", "adamw", "sgd")
    training = _training(model, optimizer, size, asked, paper=paper, preferred=preferred)
    rate = training.learning_rate(steps, warmup_steps=steps // 7, start=1 / 400)
    baseline = Baseline(
        shape=Shape(32, 224, 224),
        batch_size=size.batch_size,
        steps=steps,
        num_videos=size.num_videos,
        learning_rate=rate,
        stage_ends=stage_ends(steps, (44, 72, 92), of=112),
    )
    steps_note = _epochs_note(baseline, asked) or "239 epochs of the baseline, as on Kinetics"
    evidence = from_random_weights(Model(model), size.num_videos, optimizer=training.optimizer.name)
    config = _run("scratch", baseline, model, size, training, evidence, asked, steps_note)
    has_weights = config.model.entry is not None and config.model.entry.kinetics_file is not None
    if size.num_videos >= 50_000 or not has_weights:
        return config
    few = f"{size.num_videos:,} videos are few to start from random weights: compare with finetune"
    return replace(config, notes=(*config.notes, few))


def _run(
    name: str,
    baseline: Baseline,
    model: str,
    size: _Size,
    training: _Training,
    evidence: Evidence,
    asked: Asked,
    steps_note: str,
) -> RunConfig:
    is_muon = training.optimizer.name == "muon"
    multigrid, schedule_notes = planned(
        baseline, evidence, is_muon=is_muon, is_timed=asked.is_timed
    )
    network = Model(model)
    return RunConfig(
        recipe=name,
        baseline=baseline,
        multigrid=replace(
            multigrid,
            norm_group=size.norm_group,
            rate_exponent=training.rate_exponent,
            rule=network.rule,
        ),
        model=network,
        optimizer=training.optimizer,
        notes=(*size.notes, training.note),
        schedule_notes=schedule_notes,
        steps_note=steps_note,
    )


def _training(
    model: str,
    optimizer: str | None,
    size: _Size,
    asked: Asked,
    *,
    paper: tuple[float, int, str],
    preferred: tuple[str, ...],
) -> _Training:
    """By the first of the ``preferred`` optimizers that the network has a rate for, or paper's SGD.

    Raises ValueError if another is asked for without a rate.
    """
    entry = Model(model).entry
    known = {} if entry is None else entry.rates
    rates = {each: known[each] for each in preferred if each in known}
    name = optimizer or next(iter(rates), "sgd")
    exponent = rate_exponent(name)
    base, clips, run = paper
    rate, why = base * size.batch_size / clips, f"the paper's {base:g} at {clips} clips on {run}"
    if name in rates:
        rate = rates[name] * math.pow(size.batch_size / 8, exponent)
        why = f"{_TITLES[name]} {rates[name]:g} at 8 clips of {model}, chosen from random weights"
    elif name != "sgd" and asked.rate is None:
        raise ValueError(
            f"optimizer.name {name}: no learning rate is known for {model}; give one with --lr"
        )
    chosen = _DECAYED.get(name, Optimizer(name))  # type: ignore[arg-type]
    if asked.rate is not None:
        rate, note = asked.rate, f"learning rate {asked.rate:g}, as asked"
    else:
        note = f"learning rate {rate:g}: {why}, {rate_rule(exponent)}"
    return _Training(chosen, rate, exponent, name in rates, note)


def _epochs_note(baseline: Baseline, asked: Asked) -> str:
    """What was asked for; empty if the recipe chose."""
    if asked.steps is not None:
        epochs = epochs_text(baseline.epochs)
        return f"{asked.steps:,} steps of the baseline, as asked: {epochs} epochs"
    return f"{asked.epochs:g} epochs of the baseline, as asked" if asked.epochs else ""


def _size(num_videos: int | None, num_gpus: int, asked: Asked) -> _Size:
    """Norm groups on each GPU: then every batch, a multiple of them, is shared in whole groups.

    Few videos take smaller groups and batches, so that an epoch still has some steps.
    """
    if not 1 <= num_gpus <= 8:
        raise ValueError(f"--gpus {num_gpus}: give 1 to 8; change the batch size for more")
    if num_videos is None:
        num_videos = 10_000
        notes = ["10,000 training videos are assumed: give --data or --num-videos"]
    else:
        if num_videos < 2:
            raise ValueError(f"num_videos {num_videos}: give at least 2 training videos")
        notes = [f"{num_videos:,} training videos"]
    if asked.batch_size is not None:
        group = _shared_groups(asked.batch_size, num_gpus)
        enough = _GROUPS[0] * num_gpus
        note = f"batch size {asked.batch_size}, as asked"
        if group != _GROUPS[0]:
            note += f", in norm groups of {group}; a multiple of {enough} has the paper's"
        notes.append(note)
        return _Size(num_videos, asked.batch_size, group, tuple(notes))
    if num_videos < 2 * num_gpus:
        raise ValueError(
            f"--gpus {num_gpus}: {num_videos} videos are fewer than two for each GPU; use at "
            f"most {num_videos // 2}"
        )
    fits = (each for each in _GROUPS if each * num_gpus * _LEAST_EPOCH <= num_videos)
    group = next(fits, _GROUPS[-1])
    why = f"batch size {group * num_gpus}: a norm group of {group} clips"
    if num_gpus > 1:
        why += f" on each of {num_gpus} GPUs"
    if group < _GROUPS[0]:
        why += f", not the paper's {_GROUPS[0]}, as {num_videos:,} videos leave an epoch few steps"
    return _Size(num_videos, group * num_gpus, group, (*notes, why))


def _shared_groups(batch_size: int, num_gpus: int) -> int:
    """The largest norm group that divides each GPU's share of a batch."""
    if batch_size % num_gpus:
        raise ValueError(
            f"batch_size {batch_size}: {num_gpus} GPUs do not share it evenly; give a multiple of "
            f"{num_gpus}"
        )
    return math.gcd(batch_size // num_gpus, _GROUPS[0])


def _finetuning_epochs(num_videos: int) -> int:
    """57 at Charades' 7,985 videos, 22 at Something-Something V2's 168,913, a power between."""
    power = math.log(22 / 57) / math.log(168_913 / 7_985)
    return min(100, max(15, round(57 * math.pow(num_videos / 7_985, power))))
