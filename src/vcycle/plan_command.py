"""``vcycle plan``: what a recipe's run will do, before it is paid for.

In: a recipe and flags. Out: a table, JSON, or a picture. Nothing here needs torch or data.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vcycle.config_flags import add_config_flags, run_config
from vcycle.multiply_adds import compute
from vcycle.recipes import summaries
from vcycle.report.plan_table import plan_table
from vcycle.schedule import cost
from vcycle.schedule.plan import Plan
from vcycle.train.config import RunConfig


def run_plan_command(options: argparse.Namespace, fields: Sequence[str]) -> None:
    """Print or draw the plan that the flags ask for; ValueError for what a user got wrong."""
    if options.list:
        print(json.dumps(summaries(), indent=1) if options.json else _listing())
        return
    config = run_config(options, fields)
    plan = config.plan()
    if options.plot is not None:
        _draw(plan, Path(options.plot), title=config.recipe)
    if options.json:
        print(json.dumps(plan_values(config), indent=1))
    else:
        print(plan_text(config))


def add_plan_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``vcycle plan``: those of every run, and what to do with the plan."""
    add_config_flags(parser)
    parser.add_argument("--list", action="store_true", help="list the recipes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the plan as a PNG or SVG")


def plan_values(config: RunConfig) -> dict[str, Any]:
    """What ``--json`` prints: plain values of the plan and of what it costs.

    ``compute_reduction`` is in ``compute_unit``: ``multiply-adds`` of the model, or ``pixels`` of
    its clips where they have not been counted.
    """
    plan = config.plan()
    computed, unit = compute(plan, config.model.name)
    return {
        "recipe": config.recipe,
        "model": config.model.name,
        **plan.to_dict(),
        "compute_reduction": computed.reduction,
        "compute_unit": unit,
        "frame_reduction": cost.frames(plan).reduction,
        "notes": _notes(config),
    }


def plan_text(config: RunConfig) -> str:
    """What is printed for people: title, phases, short cycle, totals, notes."""
    plan = config.plan()
    computed, unit = compute(plan, config.model.name)
    summary = summaries().get(config.recipe, "")
    parts = [
        f"{config.recipe}: {summary}" if summary else config.recipe,
        plan_table(plan, {unit: computed, "frames decoded": cost.frames(plan)}),
    ]
    notes = _notes(config)
    if plan.warmup_steps:
        end = plan[plan.warmup_steps].learning_rate
        notes = [f"warm-up: {plan.warmup_steps:,} steps, to a rate of {end:.4g}", *notes]
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts)


def _notes(config: RunConfig) -> list[str]:
    notes = list(config.notes)
    if config.model.pretrained_on and not config.model.weights:
        notes.append(
            f"training starts from {config.model.pretrained_on} weights: give --model.weights FILE"
        )
    return notes


def _listing() -> str:
    names = summaries()
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {summary}" for name, summary in names.items())


def _draw(plan: Plan, file: Path, *, title: str) -> None:
    from vcycle.report.plan_picture import draw_plans  # matplotlib takes longer than the rest

    draw_plans({title: plan}, file)
