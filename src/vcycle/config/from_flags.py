"""The configuration that flags ask for: a recipe or a file, sized by its videos, then changed.

In: parsed flags. Out: a RunConfig, or one line on what is missing or contradicts.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from vcycle.config.fields import changed, config_from, read_config
from vcycle.config.fitting import fitted_cycle, fitted_span, noted_grids, noted_side, unfitted
from vcycle.config.flags import check_flags
from vcycle.config.recipes import FIXED_RECIPES, USER_RECIPES, recipe
from vcycle.config.run import RunConfig
from vcycle.config.sizing import Asked, other_notes, rate_exponent, rescaled, reshaped
from vcycle.data.manifest import Manifest
from vcycle.schedule.multigrid import COARSE_TO_FINE, Multigrid

_CYCLES = ("long_cycle", "short_cycle", "fine_tuning", "anneal")
_SIZES = ("steps", "epoch_factor", "batch_exponent")
"""Fields of Multigrid that are a recipe's schedule, and those that its reason is about too."""
_OF_DECAYS = ("decay", "gamma", "final", "rise", "warmup_steps")
"""Fields of a learning rate that an anneal replaces."""
_EPOCH_FACTOR = "multigrid.epoch_factor"
_MORE_TIMES = (4, 64, 1024)
"""As many epochs that are tried, if a given number is too small."""
_FEWER = 12
"""Epochs, of which some may have a plan below one that has none: steps of a shape are rounded."""


def run_config(options: argparse.Namespace) -> RunConfig:
    """The configuration that parsed flags ask for.

    Raises ValueError if there is not one recipe or file, or flags contradict each other.
    """
    manifest = options.fields.get("data.manifest")
    videos = Manifest.read(manifest).split("train") if manifest else None
    config = _config(options, videos)
    if options.epochs is not None:
        _check_epochs(config, options, videos)
    return config


def _config(options: argparse.Namespace, videos: Manifest | None) -> RunConfig:
    if options.recipe is not None and options.config is not None:
        raise ValueError(
            f"recipe {options.recipe} and --config {options.config}: each is a whole run; give one"
        )
    if options.recipe is None and options.config is None:
        raise ValueError(
            "recipe: name one (vcycle plan --list shows them), or give --config FILE instead; "
            "vcycle train takes a folder of videos, too"
        )
    check_flags(options.given)
    read = _read(options, videos)
    _check_rate(read, options.fields, from_file=options.config is not None)
    _check_cycles(read, options)
    config = _scheduled(read, options)
    saved = "" if "data.manifest" in options.fields else config.data.manifest
    if saved and Path(saved).exists():  # a run's file may be read where its videos are not
        videos = Manifest.read(saved).split("train")
    rate = {name: value for name, value in options.fields.items() if name == "data.frame_rate"}
    frames, side = _typical_video(videos, changed(config, rate).data.frame_rate)
    if any(name.startswith("baseline.shape.") for name in options.fields):
        shape = config_from(asdict(config), options.fields).baseline.shape
        config = reshaped(config, shape, given=options.fields, video_frames=frames)
    config = changed(config, options.fields)
    config = fitted_span(
        config,
        frames,
        given=options.fields,
        is_own=options.recipe in USER_RECIPES,
    )
    config = noted_side(config, side)
    if "multigrid.norm_group" in options.fields:
        config = replace(config, notes=other_notes(config.notes, "norm groups of"))
    config = _change_plan(config, options)
    _check_decay(config, options.fields)
    if read.recipe not in USER_RECIPES:
        return config
    # What was asked for has no reason of the recipe's; a baseline has no length or batches to ask.
    kept = _CYCLES if read.multigrid.long_cycle is None else (*_CYCLES, *_SIZES)
    is_named = options.schedule is not None or _is_baseline(options)
    is_alike = all(getattr(config.multigrid, x) == getattr(read.multigrid, x) for x in kept)
    if is_named or not is_alike or _trained(config) != _trained(read):
        config = replace(config, schedule_notes=())
    cycle = config.multigrid.long_cycle
    if cycle is None or not cycle.once or cycle.factors != COARSE_TO_FINE:
        return config  # factors that were asked for are refused where they do not fit
    config = fitted_cycle(config)
    return noted_grids(config) if read.has_chosen_schedule and not is_named else config


def _trained(config: RunConfig) -> tuple[str, str, int]:
    """What else the reason of a schedule is about."""
    return config.model.name, config.optimizer.name, config.baseline.num_videos


def _is_baseline(options: argparse.Namespace) -> bool:
    return options.baseline or options.baseline_steps is not None


def _check_epochs(config: RunConfig, options: argparse.Namespace, videos: Manifest | None) -> None:
    """Raise ValueError, with a number that is enough, if so few epochs have no plan."""
    try:
        config.plan()
    except ValueError as error:
        few = math.floor(options.epochs)
        tried = (math.ceil(options.epochs * times) for times in _MORE_TIMES)
        enough = next((each for each in tried if _has_plan(options, videos, each)), 0)
        if not enough:  # it is not for their number
            raise
        least = few + 1
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if _has_plan(options, videos, middle) else (middle, enough)
        nearer = range(max(least, enough - _FEWER), enough)
        enough = next((each for each in nearer if _has_plan(options, videos, each)), enough)
        raise ValueError(
            f"--epochs {options.epochs:g}: {config.baseline.steps} steps are too few for the "
            f"schedule; give --epochs {enough} or more, or --baseline for no cycles"
        ) from error


def _has_plan(options: argparse.Namespace, videos: Manifest | None, epochs: int) -> bool:
    others = argparse.Namespace(**{**vars(options), "epochs": float(epochs)})
    try:
        _config(others, videos).plan()
    except ValueError:
        return False
    return True


def _typical_video(
    videos: Manifest | None, frame_rate: float | None
) -> tuple[int | None, int | None]:
    """Frames and pixels of the short side of a typical training video; None without videos.

    Frames are those of the videos, or at a ``frame_rate``.
    """
    if videos is None:
        return None, None
    frames = median(
        len(video.frame_range) * (frame_rate / video.frame_rate if frame_rate else 1)
        for video in videos.videos
    )
    side = median(min(video.width, video.height) for video in videos.videos)
    return int(frames), int(side)


def _read(options: argparse.Namespace, videos: Manifest | None) -> RunConfig:
    """The recipe, sized by its videos if they are one's own; or what a file says."""
    num_videos, num_gpus = options.num_videos, options.gpus
    if options.recipe is None:
        if num_videos is not None or num_gpus is not None:
            raise ValueError(
                "--num-videos and --gpus: --config has chosen the batch; leave them out"
            )
        read = unfitted(read_config(Path(options.config)))
        if read.recipe in USER_RECIPES:  # notes of numbers, which may have been changed since
            read = replace(read, notes=(), steps_note="", fitted_seconds=None)
        size = options.fields.get("baseline.num_videos")
        config = rescaled(read, _asked(options), num_videos=size)
        if config.baseline.steps != read.baseline.steps:  # its reasons are of another length
            config = replace(config, schedule_notes=())
        return config
    name = options.recipe
    num_gpus = num_gpus if name in USER_RECIPES else None  # others are the same on any number
    folder = Path(name)
    if name not in (*FIXED_RECIPES, *USER_RECIPES) and folder.is_dir():
        command = "" if (folder / "manifest.csv").exists() else f"vcycle data index folder {name}"
        raise ValueError(
            f"recipe {name}: a folder, and no recipe; for its videos give scratch or finetune and "
            f"--data {name}" + (f" after {command}" if command else "")
        )
    if name in USER_RECIPES and "baseline.num_videos" in options.fields:
        raise ValueError(
            f"--baseline.num_videos: recipe {name} is sized by --num-videos; give that instead"
        )
    if name in USER_RECIPES and num_videos is None and videos is not None:
        num_videos = len(videos)
    if name in FIXED_RECIPES and num_videos is None:
        size = options.fields.get("baseline.num_videos")
        return rescaled(recipe(name), _asked(options), num_videos=size)
    return recipe(
        name,
        num_videos=num_videos,
        num_gpus=num_gpus,
        model=options.fields.get("model.name"),
        optimizer=options.fields.get("optimizer.name"),
        asked=_asked(options),
    )


def _check_cycles(config: RunConfig, options: argparse.Namespace) -> None:
    """Raise ValueError if a flag is about cycles or an anneal where a recipe chose a baseline."""
    is_off = config.has_chosen_schedule and config.multigrid.long_cycle is None
    groups = ("multigrid.long_cycle.", "multigrid.short_cycle.", "multigrid.anneal.")
    found = [name for name in options.fields if name.startswith(groups)]
    asked = options.schedule is not None or _is_baseline(options)
    if not is_off or not found or asked:
        return
    raise ValueError(
        f"--{found[0]}: {options.recipe or 'this run'} plans a baseline here "
        f"({config.schedule_notes[0]}); give --schedule anneal, or another, with it"
    )


def _check_decay(config: RunConfig, fields: dict[str, Any]) -> None:
    """Raise ValueError if a flag is about a decay, stages or a warm-up that an anneal replaces."""
    unused = [f"baseline.learning_rate.{name}" for name in _OF_DECAYS]
    cycle = config.multigrid.long_cycle
    if cycle is None or cycle.once:  # or stages have cycles of their own
        unused.append("baseline.stage_ends")
    if config.multigrid.anneal is None or not (found := [x for x in unused if x in fields]):
        return
    raise ValueError(
        f"--{found[0]}: an anneal warms up and falls by itself, and this would change nothing; "
        f"give --multigrid.anneal.warmup, .share, .form or .final, or --schedule pass or off"
    )


def _check_rate(config: RunConfig, fields: dict[str, Any], *, from_file: bool) -> None:
    """Raise ValueError if another optimizer would get the configuration's own rate.

    Or another network that of a file, but for SGD's, which are the paper's for all its networks.
    """
    own, name = config.optimizer.name, fields.get("optimizer.name", config.optimizer.name)
    model = fields.get("model.name", config.model.name)
    if "baseline.learning_rate.base" in fields:
        return
    if from_file and name == own != "sgd" and model != config.model.name:
        raise ValueError(
            f"--model {model}: {config.baseline.learning_rate.base:g} is {own}'s rate for "
            f"{config.model.name}; give {model} its own with --lr"
        )
    if name == own:
        return
    exponent = rate_exponent(name)
    rule = f", and --multigrid.rate_exponent {exponent:g}" if exponent != 1 else ""
    raise ValueError(
        f"--optimizer.name {name}: {config.baseline.learning_rate.base:g} is a rate for {own}; "
        f"give {name} its own with --lr{rule}"
    )


def _asked(options: argparse.Namespace) -> Asked:
    """What was fixed of the run's size, by short names or dotted ones."""
    fields = options.fields
    return Asked(
        batch_size=fields.get("baseline.batch_size"),
        epochs=options.epochs,
        steps=fields.get("baseline.steps"),
        rate=fields.get("baseline.learning_rate.base"),
        is_timed=getattr(options, "time", None) is not None,
    )


def _scheduled(config: RunConfig, options: argparse.Namespace) -> RunConfig:
    if options.schedule is None:
        return config
    return replace(config, multigrid=config.multigrid.with_schedule(options.schedule))


def _change_plan(config: RunConfig, options: argparse.Namespace) -> RunConfig:
    """Apply the flags that change the plan."""
    multigrid = config.multigrid
    if _is_baseline(options):
        multigrid = replace(multigrid.with_schedule("off"), steps=options.baseline_steps)
    else:
        multigrid = _ablated(config, options)
    if _EPOCH_FACTOR in options.fields:
        factor = options.fields[_EPOCH_FACTOR]
        multigrid = replace(multigrid, epoch_factor=factor, steps=None)
    return replace(config, multigrid=multigrid)


def _ablated(config: RunConfig, options: argparse.Namespace) -> Multigrid:
    """Fewer shapes or no fine-tuning, in as many steps (section 4.2).

    An epoch factor given beside them fixes the clips instead, as in figure 3.
    """
    multigrid = config.multigrid
    if options.long_cycle_shapes is not None:
        if multigrid.long_cycle is None:
            raise ValueError("--long-cycle-shapes: the schedule has no long cycle; leave it out")
        long_cycle = multigrid.long_cycle.last(options.long_cycle_shapes)
        multigrid = replace(multigrid, long_cycle=long_cycle)
    if options.short_cycle_shapes is not None:
        if multigrid.short_cycle is None:
            raise ValueError("--short-cycle-shapes: the schedule has no short cycle; leave it out")
        short_cycle = multigrid.short_cycle.last(options.short_cycle_shapes)
        multigrid = replace(multigrid, short_cycle=short_cycle)
    if options.no_fine_tuning:
        if multigrid.long_cycle is not None and multigrid.long_cycle.once:
            raise ValueError("--no-fine-tuning: a single pass ends on the full grid; leave it out")
        multigrid = replace(multigrid, fine_tuning=False)
    fixed = _EPOCH_FACTOR in options.fields or multigrid.steps is not None
    if multigrid == config.multigrid or fixed:
        return multigrid
    try:
        return replace(multigrid, steps=len(config.plan()))
    except ValueError as error:
        # A mistake that is not of the shapes left out is raised here, without that advice.
        replace(config, multigrid=replace(multigrid, epoch_factor=1.0)).plan()
        raise ValueError(
            f"{error}; the steps are the whole cycle's: fix them with --epoch-factor or "
            f"--multigrid.steps to leave a part of it out"
        ) from error
