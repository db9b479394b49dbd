"""``vcycle plan``: what a recipe's run will do, before it is paid for.

In: a recipe and flags. Out: a table, JSON, or a plot. Nothing here needs torch or data.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vcycle.bench.decoding import clip_seconds, decoding_line
from vcycle.cli.own_weights import use_model_of_weights
from vcycle.cli.precision import is_left_to_machine
from vcycle.config.compute import compute
from vcycle.config.fitting import other_epoch
from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_config_flags
from vcycle.config.from_flags import run_config
from vcycle.config.pretrained import published_weights
from vcycle.config.recipes import USER_RECIPES, summaries
from vcycle.config.run import RunConfig
from vcycle.config.schedule_choice import as_asked
from vcycle.data.manifest import Manifest
from vcycle.devices.cores import process_cores
from vcycle.report.plan_table import plan_table
from vcycle.schedule import cost
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape


@dataclass(frozen=True)
class PlanReport:
    """A plan with what it costs, to be printed.

    Args:
        flags: what beside the recipe's name was asked for.
        seconds: predicted wall-clock, if steps were measured.
        timed: on what device and in which precision, if the measurements say so.
        videos: how many there are, if the plan counts others.
        memory: which batches fit, if that was asked for.
        decoding: how many workers keep up, if that was measured.
        hint: how to measure it, for people.
    """

    config: RunConfig
    flags: Sequence[str] = ()
    seconds: cost.Cost | None = None
    memory: Sequence[cost.BatchMemory] = ()
    decoding: str = ""
    hint: str = ""
    timed: str = ""
    videos: str = ""

    @property
    def plan(self) -> Plan:
        """The schedule."""
        return self.config.plan()

    @property
    def title(self) -> str:
        """The recipe and the flags given."""
        return " ".join([self.config.recipe, *self.flags])


def run_plan_command(options: argparse.Namespace) -> None:
    """Print or plot the plan that the flags ask for."""
    if options.list:
        surplus = [word for word in (options.recipe, *options.given) if word is not None]
        if surplus:
            raise ValueError(f"{surplus[0]}: --list takes only --json; leave it out")
        print(json.dumps(summaries(), indent=1) if options.json else _listing())
        return
    report = _report(options)
    if options.plot is not None:
        _draw(report, Path(options.plot))
    print(json.dumps(plan_values(report), indent=1) if options.json else plan_text(report))
    if options.plot is not None and not options.json:
        print(f"\ndrawn in {options.plot}")


def add_plan_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle plan``: those of every run, and what to do with the plan."""
    add_config_flags(parser)
    parser.add_argument("--list", action="store_true", help="list the recipes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", metavar="FILE", help="draw the plan as a PNG or SVG")
    parser.add_argument(
        "--step-seconds",
        metavar="FILE",
        help="predict wall-clock from measured steps: a JSON list of rows such as "
        '{"shape": "8x158x158", "clips": 4096, "seconds": 1.9, "bytes": 3.1e10}',
    )
    parser.add_argument(
        "--memory-gib", type=float, help="of a device: which batches fit, by the bytes of the rows"
    )
    parser.add_argument(
        "--loader",
        metavar="FILE",
        help="rows of vcycle bench loader --json: say how many workers keep up with the steps",
    )
    parser.add_argument("--num-devices", type=int, help="that steps were measured on; else 1")
    parser.set_defaults(run=run_plan_command)


_DECODING_HINT = (
    "decoding: with the rows of `vcycle bench step --json` and `vcycle bench loader --json` as "
    "--step-seconds and --loader, the plan says whether it keeps up; a run says so as it begins"
)


def _report(options: argparse.Namespace) -> PlanReport:
    if options.memory_gib is not None and options.step_seconds is None:
        raise ValueError("--memory-gib: it needs the bytes of --step-seconds FILE; give both")
    if options.loader is not None and options.step_seconds is None:
        raise ValueError("--loader: it is compared with --step-seconds FILE; give both")
    needs_devices = options.memory_gib is not None or options.loader is not None
    if options.num_devices is not None and not needs_devices:
        raise ValueError(
            "--num-devices: it is for --memory-gib and --loader; give it with one of them"
        )
    use_model_of_weights(options)
    config = run_config(options)
    plan, flags, videos = config.plan(), options.given, _videos_note(config)
    if "data.short_side" in options.fields:
        config.grid_range()  # which takes numpy, as a plan does not
    if options.step_seconds is None:
        hint = _DECODING_HINT if config.data.manifest else ""
        return PlanReport(config, flags, hint=hint, videos=videos)
    num_devices = 1 if options.num_devices is None else options.num_devices
    if num_devices < 1:
        raise ValueError(f"--num-devices {num_devices}: give at least 1")
    measured, timed = _measured(
        Path(options.step_seconds), config, any_precision=is_left_to_machine(options)
    )
    memory: Sequence[cost.BatchMemory] = ()
    if options.memory_gib is not None:
        memory = cost.batch_memory(
            plan,
            measured,
            available_bytes=options.memory_gib * 2**30,
            num_devices=num_devices,
        )
    seconds = cost.seconds(plan, measured)
    decoding = ""
    if options.loader is not None:
        workers = config.data.num_workers
        decoding = decoding_line(
            plan,
            measured,
            _clip_seconds(Path(options.loader)),
            # By default they are the cores of a machine, however many processes share them.
            workers=process_cores() if workers == "auto" else workers * num_devices,
        )
    return PlanReport(config, flags, seconds, memory, decoding, timed=timed, videos=videos)


def _videos_note(config: RunConfig) -> str:
    manifest = config.data.manifest
    if not manifest or not Path(manifest).exists():  # of a run's file, on another machine
        return ""
    return other_epoch(config, len(Manifest.read(manifest).split("train")))


def _clip_seconds(file: Path) -> Mapping[str, Mapping[Shape, float]]:
    try:
        return clip_seconds(json.loads(file.read_text()))
    except (ValueError, RecursionError) as error:  # no JSON either
        raise ValueError(f"--loader {file}: {error}") from error


def _measured(
    file: Path, config: RunConfig, *, any_precision: bool
) -> tuple[Sequence[cost.MeasuredStep], str]:
    """The measured steps, and on what they were timed, if the rows say so.

    And that it was not in the plan's precision, unless that may be ``any_precision``.
    """
    try:
        rows = json.loads(file.read_text())
        measured = cost.measured_steps(rows)
        others = {str(row["model"]) for row in rows if "model" in row} - {config.model.network}
        if others:
            raise ValueError(
                f"they are steps of {', '.join(sorted(others))}; measure those of "
                f"{config.model.network} with `vcycle bench step`"
            )
    except (ValueError, RecursionError) as error:  # no JSON either
        raise ValueError(f"--step-seconds {file}: {error}") from error
    names = {"device", "precision"}
    places = {(row["device"], row["precision"]) for row in rows if names <= row.keys()}
    if not places:
        return measured, ""
    timed = f"steps were timed on {'; '.join(sorted(f'{on} in {by}' for on, by in places))}"
    if not any_precision and {by for _, by in places} != {config.precision}:
        timed += f"; this plan runs in {config.precision}"
    return measured, timed


def plan_values(report: PlanReport) -> dict[str, Any]:
    """What ``--json`` prints: plain values of the plan and of what it costs.

    ``compute``, ``baseline_compute`` and their ratio are in ``compute_unit``: ``multiply-adds`` of
    the model, or ``pixels`` of its clips if they have not been counted.
    """
    config, plan = report.config, report.plan
    computed, unit = compute(plan, config.model)
    values = {
        "recipe": config.recipe,
        "flags": list(report.flags),
        "model": config.model.name,
        **plan.to_dict(),
        "compute": computed.plan,
        "baseline_compute": computed.baseline,
        "compute_reduction": computed.reduction,
        "compute_unit": unit,
        "frame_reduction": cost.frames(plan).reduction,
        "span_reduction": _spans(config)[1].reduction,
        "final_evaluation": config.final.protocol if config.final else None,
        "notes": [*_notes(config), *filter(None, [report.videos, report.timed])],
    }
    if report.seconds:
        values["predicted_seconds"] = report.seconds.plan
        values["baseline_predicted_seconds"] = report.seconds.baseline
        values["predicted_speedup"] = report.seconds.reduction
    if report.decoding:
        values["decoding"] = report.decoding
    if report.memory:
        values["memory"] = [{**asdict(row), "shape": str(row.shape)} for row in report.memory]
    return values


def plan_text(report: PlanReport) -> str:
    """What is printed for people: title, phases, short cycle, totals, notes."""
    config, plan = report.config, report.plan
    computed, unit = compute(plan, config.model)
    costs = {unit: computed, "frames on the grids": cost.frames(plan)}
    name, spans = _spans(config)
    costs[name] = spans
    if report.seconds:
        hours = cost.Cost(report.seconds.plan / 3600, report.seconds.baseline / 3600)
        costs["wall-clock, hours"] = hours
    summary = summaries().get(config.recipe, "")
    parts = [
        _wrapped(f"{report.title}: {summary}" if summary else report.title),
        plan_table(plan, costs, report.memory),
    ]
    notes = _notes(config)
    if unit == "pixels":
        notes.append(
            "pixels: they stand in for the multiply-adds, which are on record for other shapes only"
        )
    if config.final is not None:
        notes.append(f"final evaluation: {config.final.protocol}")
    if plan.warmup_steps:
        end = plan[plan.warmup_steps].learning_rate
        notes = [f"warm-up: {plan.warmup_steps:,} steps, to a rate of {end:.4g}", *notes]
    notes += filter(None, (report.videos, report.timed, report.decoding, report.hint))
    if notes:
        parts.append("\n".join(_wrapped(f"- {note}", indent="  ") for note in notes))
    return "\n\n".join(parts)


def _wrapped(text: str, *, indent: str = "") -> str:
    return textwrap.fill(
        text, 80, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _spans(config: RunConfig) -> tuple[str, cost.Cost]:
    """What a decoder goes through, and in what unit: a clip of segments spans its whole video."""
    plan = config.plan()
    if config.data.segments:
        return "videos spanned", cost.clip_cost(plan, lambda *_: 1)
    return "frames spanned", cost.frames_spanned(plan, stride=config.data.stride)


def _notes(config: RunConfig) -> list[str]:
    plan = config.plan()
    notes = [*config.notes, *config.schedule_notes, *filter(None, [config.steps_note])]
    if not config.has_chosen_schedule and len(plan.shapes) > 1:
        notes += as_asked(config, len(plan), is_own=config.recipe in USER_RECIPES)
    if config.multigrid.anneal is not None:
        anneal, share = config.multigrid.anneal, 1 - plan.anneal_start
        falls = "in a line" if anneal.form == "linear" else "along a cosine"
        form = f"{falls} to {anneal.final:g} of its peak" if anneal.final else f"{falls} to 0"
        over = (
            f"constant on each shape, then {form} over the last {share:.0%} of the steps"
            if share < 1
            else form
        )
        notes.append(f"rate: {over}, in place of the baseline's decay and warm-up")
    elif config.recipe in USER_RECIPES and config.baseline.learning_rate.decay == "step":
        drops = [
            f"{phase.first_step / len(plan):.0%}"
            for before, phase in pairwise(plan.phases)
            if phase.rate_stage != before.rate_stage
        ]
        if drops:
            notes.append(
                f"rate: {config.baseline.learning_rate.gamma:g} times itself after "
                f"{', '.join(drops)} of the steps, as in the paper; or "
                f"--baseline.learning_rate.decay cosine"
            )
    return [*notes, *_weights_note(config)]


def _weights_note(config: RunConfig) -> list[str]:
    """Which weights are missing, or would be better than random ones."""
    model = config.model
    if model.weights:
        return []
    if kind := model.pretrained_on:
        which = published_weights(model, kind) or f"none are known for {model.name}"
        return [f"training starts from {kind} weights: give --weights FILE; {which}"]
    found = published_weights(model, "kinetics400")
    if found and config.recipe in USER_RECIPES:
        return [f"training starts from random weights; with --weights FILE, {found}"]
    return []


def _listing() -> str:
    names = summaries()
    width = max(map(len, names))
    return "\n".join(
        _wrapped(f"{name:<{width}}  {summary}", indent=" " * (width + 2))
        for name, summary in names.items()
    )


def _draw(report: PlanReport, file: Path) -> None:
    from vcycle.report.plan_plot import draw_plans  # matplotlib takes longer than the rest

    draw_plans({textwrap.fill(report.title, 80): report.plan}, file)
