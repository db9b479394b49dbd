"""The flags that make a configuration: a recipe, what changes its plan, and any field.

In: command-line arguments. Out: a RunConfig. ``vcycle plan`` and ``vcycle train`` take the same
flags, so that what was printed is what is trained.

    RECIPE --epoch-factor 2 --baseline.batch_size 64
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, NoReturn

from vcycle.config.fields import config_from, read_values
from vcycle.config.recipes import USER_RECIPES, recipe
from vcycle.config.run import RunConfig
from vcycle.data.manifest import Manifest
from vcycle.schedule.multigrid import SCHEDULES, Multigrid

_FLAGS: dict[str, dict[str, Any]] = {
    "--config": {"metavar": "FILE", "help": "start from a run's config.yaml instead"},
    "--num-videos": {
        "type": int,
        "help": "training videos of finetune and scratch; else counted in --data.manifest",
    },
    "--num-gpus": {"type": int, "help": "GPUs of finetune and scratch, 1 to 8; else 1"},
    "--schedule": {
        "metavar": "|".join(SCHEDULES),
        "help": "another schedule than the recipe's; fields and the flags below change it further",
    },
    "--epoch-factor": {"type": float, "help": "epochs, times the baseline's"},
    "--long-cycle-shapes": {
        "type": int,
        "metavar": "1..4",
        "help": "only the last shapes of the long cycle, in as many steps (table 1a)",
    },
    "--short-cycle-shapes": {
        "type": int,
        "metavar": "1..3",
        "help": "only the last shapes of the short cycle, in as many steps (table 1b)",
    },
    "--no-fine-tuning": {
        "action": "store_true",
        "help": "a long cycle in the last learning-rate stage too, in as many steps",
    },
    "--baseline": {"action": "store_true", "help": "no multigrid"},
    "--baseline-steps": {"type": int, "help": "no multigrid, in so many steps"},
}
PLAN_FLAGS = tuple(_FLAGS)
_OF_BASELINES = ("norm_group", "rule")
"""Fields of Multigrid that a baseline keeps."""

_SHORT_NAMES = {
    "--data": "--data.manifest",
    "--model": "--model.name",
    "--weights": "--model.weights",
}
FIELDS_HELP = (
    "Any field of the configuration can be set by its dotted name, such as "
    "--baseline.batch_size 64 --multigrid.batch_exponent 0.5 --multigrid.rule.side_multiple 32; "
    + ", ".join(f"{short} is {field}" for short, field in _SHORT_NAMES.items())
    + "."
)


class FlagParser(argparse.ArgumentParser):
    """An argparse parser whose errors are a ValueError of one line."""

    def __init__(self, **options: Any) -> None:
        # An abbreviated flag could be the dotted name of a field.
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        """ValueError instead of a usage text and an exit."""
        raise ValueError(message)


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """Add the recipe and the flags that change its plan.

    The recipe's name and the dotted flags of fields are not added: ``parse_known_args`` leaves them
    over for ``run_config``. A positional argument would take the value of a field for itself.
    """
    parser.usage = f"{parser.prog} RECIPE [flags], or {parser.prog} --config FILE [flags]"
    for flag, settings in _FLAGS.items():
        parser.add_argument(flag, **settings)


def given_flags(options: argparse.Namespace, left_over: Sequence[str]) -> list[str]:
    """What beside a recipe's name was asked for, such as ``--epoch-factor 2``."""
    given = []
    for flag in PLAN_FLAGS:
        value = getattr(options, flag.removeprefix("--").replace("-", "_"))
        if value is True:
            given.append(flag)
        elif value is not None and value is not False:
            given.append(f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}")
    for argument in _fields(left_over):
        if argument.startswith("--"):
            given.append(argument)
        else:
            given[-1] += f" {argument}"
    return given


def _fields(left_over: Sequence[str]) -> Sequence[str]:
    """Dotted flags in full, without the recipe's name, which comes before any flag."""
    named = bool(left_over) and not left_over[0].startswith("-")
    words = [word.partition("=") for word in (left_over[1:] if named else left_over)]
    return ["".join((_SHORT_NAMES.get(flag, flag), *rest)) for flag, *rest in words]


def run_config(options: argparse.Namespace, left_over: Sequence[str]) -> RunConfig:
    """The configuration that parsed flags ask for.

    ``left_over`` is what ``parse_known_args`` left: a recipe's name, unless the options name a
    file, and dotted flags such as ``--baseline.steps 5000``. The flags of ``add_config_flags``
    change the plan that they leave. ValueError in one line for what does not fit.
    """
    fields = _fields(left_over)
    named = len(fields) < len(left_over)
    if named == (options.config is not None):
        raise ValueError(
            "recipe: name one, before any flag (vcycle plan --list shows them), or give --config "
            "FILE instead"
        )
    _check_flags(options, _names(fields))
    if named:
        config = _of_recipe(left_over[0], options, fields)
    else:
        if options.num_videos is not None or options.num_gpus is not None:
            raise ValueError("--num-videos and --num-gpus: --config has chosen the batch already")
        config = _scheduled(read_config(Path(options.config)), options)
        config = config_from(asdict(config), fields, other_flags=PLAN_FLAGS)
    return _change_plan(config, options)


def _scheduled(config: RunConfig, options: argparse.Namespace) -> RunConfig:
    if options.schedule is None:
        return config
    return replace(config, multigrid=config.multigrid.with_schedule(options.schedule))


def _of_recipe(name: str, options: argparse.Namespace, fields: Sequence[str]) -> RunConfig:
    """The recipe with its fields changed; one for own videos is sized by their manifest."""
    num_videos, num_gpus = options.num_videos, options.num_gpus
    if name in USER_RECIPES and "baseline.num_videos" in _names(fields):
        raise ValueError(
            f"--baseline.num_videos: recipe {name} is sized by --num-videos; give that instead"
        )
    config = _scheduled(recipe(name, num_videos=num_videos, num_gpus=num_gpus), options)
    if not fields:
        return config
    changed = config_from(asdict(config), fields, other_flags=PLAN_FLAGS)
    if name not in USER_RECIPES or num_videos is not None or not changed.data.manifest:
        return changed
    num_videos = len(Manifest.read(changed.data.manifest).split("train"))
    config = _scheduled(recipe(name, num_videos=num_videos, num_gpus=num_gpus), options)
    return config_from(asdict(config), fields, other_flags=PLAN_FLAGS)


def read_config(file: Path, fields: Sequence[str] = ()) -> RunConfig:
    """The configuration in a run's ``config.yaml``, changed by dotted flags."""
    return config_from(read_values(file), _fields(fields), other_flags=PLAN_FLAGS)


def _names(fields: Sequence[str]) -> list[str]:
    """The dotted names in flags such as ``--baseline.steps 5000``."""
    return [flag.partition("=")[0][2:] for flag in fields if flag.startswith("--")]


def _check_flags(options: argparse.Namespace, names: Sequence[str]) -> None:
    """ValueError where two flags contradict each other, and neither would win for a reason."""
    no_multigrid, ablation = _no_multigrid(options), _ablation(options)
    if no_multigrid and ablation:
        raise ValueError(f"{no_multigrid} and {ablation}: a baseline has no cycles; leave one out")
    if no_multigrid:
        changing = [each.name for each in dataclass_fields(Multigrid)]
        for field in (each for each in changing if each not in _OF_BASELINES):
            _check_pair(no_multigrid, field, names, "a baseline has no cycles")
    if no_multigrid and options.schedule is not None:
        raise ValueError(f"{no_multigrid} and --schedule: a baseline has none; leave one out")
    both = "both fix the steps"
    if options.baseline_steps is not None and options.epoch_factor is not None:
        raise ValueError(f"--baseline-steps and --epoch-factor: {both}; leave one out")
    if options.epoch_factor is not None:
        _check_pair("--epoch-factor", "steps", names, both)
        _check_pair("--epoch-factor", "epoch_factor", names, both)
    if "multigrid.steps" in names:
        _check_pair("--multigrid.steps", "epoch_factor", names, both)
    if options.no_fine_tuning:
        _check_pair("--no-fine-tuning", "fine_tuning", names, "both decide on fine-tuning")


def _check_pair(flag: str, field: str, names: Sequence[str], reason: str) -> None:
    """ValueError where beside ``flag`` a field of Multigrid, or one within it, is set by name."""
    field = f"multigrid.{field}"
    for name in names:
        if name in ("multigrid", field) or name.startswith(f"{field}."):
            raise ValueError(f"{flag} and --{name}: {reason}; leave one out")


def _no_multigrid(options: argparse.Namespace) -> str | None:
    """The flag that asks for a baseline, if one does."""
    if options.baseline:
        return "--baseline"
    return None if options.baseline_steps is None else "--baseline-steps"


def _ablation(options: argparse.Namespace) -> str | None:
    """The first flag that changes the cycles, if one does."""
    given = {
        "--long-cycle-shapes": options.long_cycle_shapes is not None,
        "--short-cycle-shapes": options.short_cycle_shapes is not None,
        "--no-fine-tuning": options.no_fine_tuning,
    }
    return next((flag for flag, is_given in given.items() if is_given), None)


def _change_plan(config: RunConfig, options: argparse.Namespace) -> RunConfig:
    """Apply the flags that change the plan."""
    multigrid = config.multigrid
    if _no_multigrid(options):
        multigrid = Multigrid.off(
            steps=options.baseline_steps, norm_group=multigrid.norm_group, rule=multigrid.rule
        )
    else:
        multigrid = _ablated(config, options)
    if options.epoch_factor is not None:
        multigrid = replace(multigrid, epoch_factor=options.epoch_factor, steps=None)
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
        multigrid = replace(multigrid, fine_tuning=False)
    if multigrid == config.multigrid or options.epoch_factor is not None:
        return multigrid
    return replace(multigrid, steps=len(config.plan()))
