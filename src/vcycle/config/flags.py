"""The flags that make a configuration: a recipe, what changes its plan, and any field.

``vcycle plan`` and ``vcycle train`` take the same flags, so that what was printed is what is
trained; ``from_flags`` makes the configuration of them.

    RECIPE --epoch-factor 2 --baseline.batch_size 64
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Any

from vcycle.config.fields import field_types
from vcycle.config.flag_parser import FlagParser, TypedFlag
from vcycle.schedule.multigrid import SCHEDULES, Multigrid
from vcycle.schedule.shape import Shape

_FLAGS: dict[str, dict[str, Any]] = {
    "--config": {"hint": str, "metavar": "FILE", "help": "start from a run's config.yaml instead"},
    "--num-videos": {
        "hint": int,
        "help": "training videos of finetune and scratch; else counted in --data",
    },
    "--gpus": {
        "hint": int,
        "help": "GPUs that a run is for, 1 to 8; vcycle train starts a process on each; else 1",
    },
    "--schedule": {
        "hint": str,
        "metavar": "|".join(SCHEDULES),
        "help": "another schedule than the recipe's; fields and the flags below change it further",
    },
    "--epochs": {"hint": float, "help": "of the baseline; the epoch factor multiplies them"},
    "--long-cycle-shapes": {
        "hint": int,
        "metavar": "1..4",
        "help": "only the last shapes of the long cycle, in as many steps (table 1a)",
    },
    "--short-cycle-shapes": {
        "hint": int,
        "metavar": "1..3",
        "help": "only the last shapes of the short cycle, in as many steps (table 1b)",
    },
    "--no-fine-tuning": {
        "hint": bool,
        "help": "a long cycle in the last learning-rate stage too, in as many steps",
    },
    "--baseline": {"hint": bool, "help": "no multigrid"},
    "--baseline-steps": {"hint": int, "help": "no multigrid, in so many steps"},
}
PLAN_FLAGS = tuple(flag for flag in _FLAGS if flag not in ("--config", "--gpus"))
"""Flags that decide a new run's plan, and are no fields."""
_BASELINES = ("--baseline", "--baseline-steps")
_OF_BASELINES = ("norm_group", "rule", "rate_exponent")
"""Fields of Multigrid that a baseline keeps."""
_OF_CYCLES = tuple(
    f"--multigrid.{each.name}" for each in fields(Multigrid) if each.name not in _OF_BASELINES
)
_STEPS = "both fix the steps"
_LENGTHS = ("--baseline.steps", "--multigrid.steps", "--epoch-factor", "--multigrid.epoch_factor")
_CONTRADICTIONS: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        _BASELINES,
        ("--long-cycle-shapes", "--short-cycle-shapes", "--no-fine-tuning", *_OF_CYCLES),
        "a baseline has no cycles",
    ),
    (
        ("--schedule off",),
        ("--multigrid.long_cycle", "--multigrid.short_cycle", "--multigrid.fine_tuning"),
        "a baseline has no cycles",
    ),
    (_BASELINES, ("--schedule",), "a baseline has none"),
    (("--time",), ("--epochs", "--baseline-steps", *_LENGTHS), _STEPS),
    (("--epochs",), ("--baseline-steps", "--baseline.steps", "--multigrid.steps"), _STEPS),
    (("--baseline-steps",), ("--baseline.steps", "--epoch-factor"), _STEPS),
    (("--multigrid.steps",), ("--epoch-factor", "--multigrid.epoch_factor"), _STEPS),
    (("--no-fine-tuning",), ("--multigrid.fine_tuning",), "both decide on fine-tuning"),
)
"""Flags, what each may not stand beside (or a field within it), and why."""
_SHORT_NAMES = {
    "baseline.batch_size": ("--batch-size", "clips of a step; rate and steps follow"),
    "baseline.learning_rate.base": ("--lr", "the learning rate at this batch size"),
    "data.manifest": ("--data", "the manifest of the videos"),
    "log": ("--log", "tensorboard, wandb or both with a comma: live logs in the run folder"),
    "multigrid.epoch_factor": ("--epoch-factor", "epochs, times the baseline's"),
    "model.name": ("--model", "a name of vcycle models, or package.module:function"),
    "model.weights": ("--weights", "a checkpoint to start from"),
    "precision": ("--precision", "32-true, tf32, bf16-mixed or 16-mixed"),
    "seed": ("--seed", "of the weights, the clips and their order"),
}
"""Field -> a flag of its own and its help."""
FIELDS_HELP = (
    "Any field of the configuration (docs/configuration.md) is a flag by its dotted name, such as "
    "--data.stride 4 "
    "--multigrid.batch_exponent 0.5 --multigrid.rule.side_multiple 32."
)


def short_flag(field: str) -> str | None:
    """A field's flag beside its dotted name, if it has one."""
    return _SHORT_NAMES[field][0] if field in _SHORT_NAMES else None


def add_field_flags(parser: FlagParser, *, unlisted: Iterable[str] = ()) -> None:
    """Add a flag for every field, and the short names; ``--help`` lists these but some fields'."""
    hidden = dict.fromkeys(unlisted, argparse.SUPPRESS)
    parser.set_defaults(fields={}, given=())
    for field, hint in field_types().items():
        short, text = _SHORT_NAMES.get(field, (None, argparse.SUPPRESS))
        parser.add_argument(
            *dict.fromkeys(filter(None, (short, f"--{field}"))),
            action=TypedFlag,
            hint=hint,
            store=lambda value, field=field: {field: value},
            metavar=field.rpartition(".")[2].upper(),
            help=hidden.get(field, text),
        )
    parser.add_argument(
        "--shape",
        action=TypedFlag,
        hint=str,
        store=_shape_fields,
        metavar="TxHxW",
        help="of a clip; short sides and stride follow",
    )
    parser.add_argument(
        "--freeze",
        action=TypedFlag,
        hint=str,
        store=lambda text: {"model.freeze": tuple(text.split(","))},
        metavar="LAYERS",
        help=hidden.get(
            "model.freeze", "layers that are not trained, such as s1,s2 or 's1.*,*_bn'"
        ),
    )


def _shape_fields(text: str) -> dict[str, Any]:
    return {f"baseline.shape.{k}": v for k, v in asdict(Shape.parse(text)).items()}


def add_config_flags(parser: FlagParser) -> None:
    """Add the flags that change a recipe's plan, and those of fields.

    The recipe is the one word of the parser: ``FlagParser(word="recipe")``.
    """
    parser.usage = f"{parser.prog} RECIPE [flags], or {parser.prog} --config FILE [flags]"
    add_field_flags(parser)
    for flag, settings in _FLAGS.items():
        default = False if settings["hint"] is bool else None
        parser.add_argument(flag, action=TypedFlag, default=default, **settings)


def check_flags(given: Iterable[str]) -> None:
    """Raise ValueError if two flags, as typed, contradict each other, and neither should win."""
    names = [each.partition(" ")[0] for each in given]
    for some, others, reason in _CONTRADICTIONS:
        for flag in (each for each in some if each in given or each in names):
            for name in names:
                if any(name == each or name.startswith(f"{each}.") for each in others):
                    raise ValueError(f"{flag} and {name}: {reason}; leave one out")
