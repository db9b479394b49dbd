"""The tables of docs/gpu.md.

In: docs/results. ``recipe_steps.jsonl`` is what ``benchmarks/gpu/steps.py --recipes`` writes on a
CPU, ``recipe_steps_gpu.jsonl`` on an H100, ``recipe_steps_h200.jsonl`` on an H200; ``gpu.json`` was
written down from timings of ``StepBench``, a profile, and ``benchmarks/gpu/equality.py``;
``gpu_decoding.jsonl`` is what ``benchmarks/gpu/decoding.py`` printed; ``gpu_runs.jsonl`` are runs
of ``study.json`` that a GPU carried out too. ``gpu_whole_runs.jsonl`` are results, on an H200, of
the commands that it names. Out: marks in the page and what stands between them.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from markdown_table import table

from vcycle.bench.paper_speedups import PAPER_SPEEDUPS
from vcycle.bench.step import step_kinds
from vcycle.config.recipes import recipe
from vcycle.config.run import RunConfig
from vcycle.schedule.cost import measured_steps, seconds
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape

Row = dict[str, Any]

PRECISIONS = ("bf16-mixed", "tf32", "32-true")
"""That the steps of the recipes were timed in on a GPU."""
COMPILED = ("bf16-mixed", "tf32")
"""Of these, those in which compiled steps were timed, too."""
_PARTS = ("forward", "backward", "optimizer")
_CLIPS = 8
"""Of the full shape, that the GPU took."""


def gpu_parts(folder: Path) -> dict[str, str]:
    """Each mark of the page with its content."""
    gpu = json.loads((folder / "gpu.json").read_text())
    on_cpu = _lines(folder / "recipe_steps.jsonl")
    on_gpu = _lines(folder / "recipe_steps_gpu.jsonl")
    on_h200 = _lines(folder / "recipe_steps_h200.jsonl")
    study = json.loads((folder / "study.json").read_text())
    pairs = _pairs(_lines(folder / "gpu_runs.jsonl"), study["rows"])
    return {
        "gpu-about": gpu_about(gpu),
        "gpu-steps": gpu_steps_table(gpu),
        "gpu-profile": gpu_profile(gpu),
        "gpu-equality": gpu_equality_table(gpu),
        "gpu-networks": gpu_networks_table(gpu),
        "gpu-decoding": gpu_decoding_table(_lines(folder / "gpu_decoding.jsonl")),
        "gpu-runs": gpu_runs_table(pairs),
        "gpu-pairs": gpu_pairs(pairs),
        "gpu-compiled": gpu_compiled_table({"H100": on_gpu, "H200": on_h200}),
        "gpu-whole-runs": gpu_whole_runs_table(_lines(folder / "gpu_whole_runs.jsonl")),
        "recipe-speedups": recipe_speedups_table(on_cpu, on_gpu, on_h200),
        "recipe-steps": recipe_steps_about(on_cpu),
        "recipe-gpu-steps": recipe_gpu_steps_table(on_gpu, "bf16-mixed"),
        "recipe-gpu-tf32": recipe_gpu_steps_table(on_gpu, "tf32"),
        "recipe-gpu-float32": recipe_gpu_steps_table(on_gpu, "32-true"),
        "recipe-gpu-about": recipe_steps_about(on_gpu),
        "recipe-h200-about": recipe_steps_about(on_h200),
    }


def _lines(file: Path) -> list[Row]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def gpu_about(results: Row) -> str:
    """What the steps on a GPU were measured on, and what they say of the plan."""
    plan = recipe(results["recipe"]).plan()
    saving = plan.baseline.steps / len(plan)
    full = max(results["steps"], key=lambda row: Shape.parse(row["shape"]).num_pixels)
    return (
        f"`{results['model']}`, a GPU's share of {full['clips']} clips of {full['shape']}, "
        f"`{results['precision']}`, channels last, random clips: an {results['device']}, torch "
        f"{results['torch']}, Triton {results['triton']}. The plan of `{results['recipe']}` has "
        f"{saving:.2f} times fewer steps than its baseline. The paper's runs were "
        f"{PAPER_SPEEDUPS[results['recipe']][plan.multigrid.epoch_factor]:g} times faster."
    )


def gpu_steps_table(results: Row) -> str:
    """Milliseconds of a step on a GPU, a line a shape and number of kernels tried."""
    lines = []
    for row in sorted(results["steps"], key=lambda row: -row["kernels_tried"]):
        single = sum(row[f"{part}_ms"] for part in _PARTS)
        lines.append(
            f"{row['shape']} | {row['clips']} | {row['norm_group']} | {row['kernels_tried']} "
            f"| {single:.0f} | {row['replayed_ms']:.1f} | {row['replayed_host_ms']:.1f} "
            f"| {row['gib']:.1f}"
        )
    return table(
        "shape | clips | norm group | kernels tried | one by one, ms | "
        "replayed, ms | host, ms | GiB",
        "lrrrrrrr",
        lines,
    )


def gpu_profile(results: Row) -> str:
    """Where the GPU's time goes in a step."""
    step = results["profile"]
    convolutions = step["convolution_ms"] + step["convolution_backward_ms"]
    return (
        f"In a step of {step['clips']} clips of {step['shape']}, no kernels tried, the GPU "
        f"computes for {step['total_ms']:.1f} ms. Convolutions take {convolutions:.1f} of these; "
        f"the fast pathway's first one, whose three channels fill no matrix unit, takes "
        f"{step['stem_of_fast_pathway_ms']:.1f} by itself. Sub-batch norm takes "
        f"{step['norm_ms']:.1f}."
    )


def gpu_equality_table(results: Row) -> str:
    """The largest errors of norm layers on a GPU."""
    lines = [
        f"{row['precision']} | {row['compared']} | {row['cases']} | {row['largest_error']:.1e}"
        for row in results["norm_layers"]
    ]
    return table("precision | compared | cases | largest error", "llrr", lines)


def gpu_networks_table(results: Row) -> str:
    """Errors of whole networks on a GPU, and those of a CPU in brackets."""
    errors: dict[tuple[str, str], dict[str, str]] = {}
    for row in results["networks"]:
        text = f"{row['error']:.1e} ({row['cpu_error']:.1e})" if row["allowed"] < 1 else "-"
        errors.setdefault((row["model"], row["precision"]), {})[row["compared"]] = text
    compared = ("outputs", "gradients", "losses", "statistics")
    lines = [
        f"`{model}` | {precision} | {' | '.join(each.get(name, '-') for name in compared)}"
        for (model, precision), each in errors.items()
    ]
    return table(f"network | precision | {' | '.join(compared)}", "llrrrr", lines)


def gpu_decoding_table(rows: list[Row]) -> str:
    """Clips a second by each decoder, a line a shape; how far NVDEC's pixels are from PyAV's."""
    speeds: dict[tuple[str, str], dict[tuple[str, int], str]] = {}
    apart: dict[tuple[str, str], str] = {}
    for row in rows:
        kind, column = (row["source"], row["shape"]), (row["decoder"], row["workers"])
        speeds.setdefault(kind, {})[column] = f"{row['clips_per_second']:.0f}"
        if row["decoder"] == "nvdec":
            apart[kind] = f"{row['difference']['mean']:.1f}"
    columns = list(dict.fromkeys(column for each in speeds.values() for column in each))
    lines = [
        f"{' | '.join(kind)} | {' | '.join(each.get(column, '-') for column in columns)} "
        f"| {apart.get(kind, '-')}"
        for kind, each in speeds.items()
    ]
    names = " | ".join(f"`{decoder}`, {workers} workers" for decoder, workers in columns)
    header = f"videos | shape | {names} | `nvdec`'s pixels differ by, of 255"
    return table(header, "ll" + "r" * (len(columns) + 1), lines)


def _pairs(on_gpu: list[Row], study: list[Row]) -> dict[tuple[Any, ...], list[tuple[Row, Row]]]:
    """The runs that a CPU and a GPU carried out, by their task, method and length."""
    names = ("dataset", "regime", "method", "length")
    cells = (*names, "rate", "seed", "fold", "role")
    here = {row["machine"] for row in on_gpu}
    others = {tuple(row[key] for key in cells): row for row in study if row["machine"] not in here}
    pairs: dict[tuple[Any, ...], list[tuple[Row, Row]]] = {}
    for row in on_gpu:
        if (same := others.get(tuple(row[key] for key in cells))) is not None:
            pairs.setdefault(tuple(row[key] for key in names), []).append((same, row))
    return pairs


def gpu_pairs(pairs: dict[tuple[Any, ...], list[tuple[Row, Row]]]) -> str:
    """How often the GPU's run of a pair has the higher top-1, of baselines and of schedules."""
    texts = []
    kinds = ("Over all tasks, of", "baselines", True), ("Of", "multigrid runs", False)
    for start, kind, is_baseline in kinds:
        gains = [
            theirs["top1"] - ours["top1"]
            for (_, _, method, _), found in pairs.items()
            for ours, theirs in found
            if method.startswith("baseline") == is_baseline
        ]
        higher, lower = (sum(sign * gain > 1e-6 for gain in gains) for sign in (1, -1))
        texts.append(
            f"{start} {len(gains)} pairs of {kind} the GPU's top-1 is higher in {higher} and lower "
            f"in {lower}; on average it differs by {100 * statistics.mean(gains):+.1f} points."
        )
    return " ".join(texts)


def gpu_runs_table(pairs: dict[tuple[Any, ...], list[tuple[Row, Row]]]) -> str:
    """Top-1 and loss of the runs that a GPU and a CPU carried out, means over their folds."""
    lines = []
    for (dataset, regime, method, length), found in pairs.items():
        top1, loss = (
            [statistics.mean(row[score] for row in side) for side in zip(*found, strict=True)]
            for score in ("top1", "loss")
        )
        apart = statistics.mean(abs(ours["top1"] - theirs["top1"]) for ours, theirs in found)
        lines.append(
            f"{dataset}/{regime} | {method} | {length:g} | {len(found)} | {100 * top1[0]:.1f} "
            f"| {100 * top1[1]:.1f} | {loss[0]:.3f} | {loss[1]:.3f} | {100 * apart:.1f}"
        )
    return table(
        "task | schedule | length | runs | top-1: a CPU | this GPU | loss: a CPU | "
        "this GPU | top-1 of single runs differs by",
        "llrrrrrrr",
        lines,
    )


def recipe_steps_about(rows: list[Row]) -> str:
    """What the steps of the recipes were timed on."""
    (device,), (torch,) = ({row[key] for row in rows} for key in ("device", "torch"))
    kinds = Counter((row["precision"], row["compiled"]) for row in rows)
    counts = [
        f"{count} in `{precision}`{' compiled' * compiled}"
        for (precision, compiled), count in sorted(kinds.items(), key=lambda item: item[0][1])
    ]
    clips = {row["clips"] for row in rows}
    kernels = rows[0].get("kernels_tried")
    tried = "" if kernels is None else f", {kernels} kernels of a convolution tried"
    return (
        f"Kinds of step: {', '.join(counts)}; {min(clips)} to {max(clips)} clips each, on "
        f"{device}, torch {torch}{tried}."
    )


def recipe_speedups_table(cpu: list[Row], gpu: list[Row], h200: list[Row]) -> str:
    """What the paper's recipes save: steps, predicted seconds, seconds as it printed them.

    Compiled steps are those of ``h200`` where ``gpu`` lacks them: a plan and its baseline are of
    one card.
    """
    lines = []
    for name, published in PAPER_SPEEDUPS.items():
        for factor, speedup in published.items():
            config = recipe(name)
            plan = replace(config, multigrid=replace(config.multigrid, epoch_factor=factor)).plan()
            fewer = plan.baseline.steps / len(plan)
            compiled = replace(config, compile=True)
            on_gpu = []
            for precision in PRECISIONS:
                on_gpu.append(_saved(plan, _steps_of_plan(gpu, config, precision)))
                if precision in COMPILED:
                    own = _steps_of_plan(gpu, compiled, precision)
                    others = _steps_of_plan(h200, compiled, precision)
                    star = "*" if own is None and others is not None else ""
                    on_gpu.append(_saved(plan, own or others) + star)
            on_cpu = _saved(plan, _steps_of(cpu, config, "32-true"))
            lines.append(
                f"`{name}` | {factor:g}x | {len(plan):,} | {fewer:.2f}x | {' | '.join(on_gpu)} "
                f"| {on_cpu} | {speedup:g}x"
            )
    return table(
        "recipe | epochs | steps | fewer steps | less time: this GPU, `bf16-mixed` "
        "| compiled, * H200 | `tf32` | compiled, * H200 | `32-true` | a CPU | the paper",
        "lrrrrrrrrrr",
        lines,
    )


def _saved(plan: Plan, rows: list[Row] | None) -> str:
    """How many times less time a plan takes than its baseline; a dash if not all was timed."""
    shapes = {str(each.shape) for each in step_kinds(plan)}
    if rows is not None and shapes <= {row["shape"] for row in rows}:
        return f"{seconds(plan, measured_steps(rows)).reduction:.2f}x"
    return "-"


def recipe_gpu_steps_table(rows: list[Row], precision: str) -> str:
    """Steps of the paper's recipes on a GPU: the baseline's, and all of the plan's.

    And what the plan of 1.5 times the epochs saves, its steps launched one by one.
    """
    lines = []
    for name in PAPER_SPEEDUPS:
        own = _steps_of_plan(rows, recipe(name), precision)
        if own is None:
            continue
        whole = _baseline_seconds(own)
        single = [sum(row[f"{part}_seconds"] for part in _PARTS) for row in own]
        launched = [{**row, "seconds": each} for row, each in zip(own, single, strict=True)]
        plan = recipe(name).plan()
        lines.append(
            f"`{name}` | {1000 * whole:.1f} | {_range([row['seconds'] for row in own], 1)} "
            f"| {_range(single)} | {_saved(plan, launched)} "
            f"| {_range([row['host_seconds'] for row in own])} "
            f"| {max(row['bytes'] for row in own) / 2**30:.1f}"
        )
    return table(
        "recipe | baseline's step, ms | the plan's, ms | one by one, ms | less time, one by one "
        "| host, ms | GiB",
        "lrrrrrr",
        lines,
    )


def _range(values: list[float], digits: int = 0) -> str:
    low, high = (f"{1000 * end:.{digits}f}" for end in (min(values), max(values)))
    return f"{low} to {high}"


def gpu_compiled_table(cards: dict[str, list[Row]]) -> str:
    """Compiled steps of the paper's recipes beside the same card's that were not compiled."""
    lines = []
    for precision, name in itertools.product(COMPILED, PAPER_SPEEDUPS):
        compiled = replace(recipe(name), compile=True)
        for card, rows in cards.items():
            own = _steps_of_plan(rows, compiled, precision)
            if own is None:
                continue
            others = {_kind(row): row for row in _steps_of(rows, recipe(name), precision)}
            before, gain, gains = "-", "-", "-"
            if all(_kind(row) in others for row in own):
                plain = [others[_kind(row)] for row in own]
                pairs = zip(own, plain, strict=True)
                faster = [each["seconds"] / row["seconds"] for row, each in pairs]
                seconds_before = _baseline_seconds(plain)
                before = f"{1000 * seconds_before:.1f}"
                gain = f"{seconds_before / _baseline_seconds(own):.2f}x"
                gains = f"{min(faster):.2f}x to {max(faster):.2f}x"
            lines.append(
                f"`{name}` | `{precision}` | {card} | {before} "
                f"| {1000 * _baseline_seconds(own):.1f} | {gain} | {gains} "
                f"| {_range([row['seconds'] for row in own], 1)}"
            )
    return table(
        "recipe | precision | GPU | baseline's step, ms | the same compiled | faster "
        "| all kinds of the plan | these compiled, ms",
        "lllrrrrr",
        lines,
    )


def _baseline_seconds(rows: list[Row]) -> float:
    """Those of a step of the full shape, as the baseline takes."""
    full = max(rows, key=lambda row: Shape.parse(row["shape"]).num_pixels)["shape"]
    return statistics.median(row["seconds"] for row in rows if row["shape"] == full)


def _kind(row: Row) -> tuple[Any, ...]:
    keys = ("model", "options", "precision", "shape", "clips", "norm_group")
    return tuple(str(row[key]) for key in keys)


def gpu_whole_runs_table(rows: list[Row]) -> str:
    """Whole runs of a large network: what they took, clips decoded and all, and came to."""
    lines = [
        f"{row['schedule']} | {row['steps']:,} | {row['clips']:,} | {row['seconds']:.1f} "
        f"| {row['waiting_seconds']:.1f} | {row['clips'] / row['seconds']:,.0f} "
        f"| {row['command_seconds']} | {100 * row['top1']:.1f} "
        f"| {row['loss']:.3f}"
        for row in rows
    ]
    return table(
        "schedule | steps | clips | seconds of steps | of them waiting for clips | clips a second "
        "| seconds of the command | top-1 | loss",
        "lrrrrrrrr",
        lines,
    )


def _steps_of_plan(rows: list[Row], config: RunConfig, precision: str) -> list[Row] | None:
    """Those of a plan's batches on one of its GPUs; None if not all its shapes were timed."""
    plan = config.plan()
    devices = max(1, plan.baseline.batch_size // _CLIPS)
    kinds = {(str(each.shape), each.batch_size // devices) for each in step_kinds(plan)}
    own = _steps_of(rows, config, precision)
    own = [row for row in own if (row["shape"], row["clips"]) in kinds]
    return own if {row["shape"] for row in own} == {shape for shape, _ in kinds} else None


def _steps_of(rows: list[Row], config: RunConfig, precision: str) -> list[Row]:
    """Those of a configuration's network, compiled if it says so; the last of each kind."""
    network = (config.model.name, config.model.options, precision, config.compile, "grouped")
    keys = ("model", "options", "precision", "compiled", "norms")
    own = [row for row in rows if tuple(row[key] for key in keys) == network]
    return list({_kind(row): row for row in own}.values())
