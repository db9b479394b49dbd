"""Write the generated parts of the documentation: no number in it is typed by hand.

    python docs/update.py           fill the tables from docs/results/*.json
    python docs/update.py --check   exit 1 if a table is out of date

``docs/results/demo.json`` is the ``summary.json`` of ``make demo``, and ``docs/figures/demo.png``
its ``curves.png``: ``make published-demo``. ``demo_elsewhere.json`` is the summary of another
machine. ``docs/results/demo_rates.json`` is what
``benchmarks/demo_rates.py`` writes, ``docs/results/loader.json`` what
``vcycle bench loader --json`` prints, and ``docs/results/norms.json`` what
``benchmarks/norms.py``, ``slices.json`` what ``benchmarks/slices.py`` and ``kept_frames.json``
what ``benchmarks/kept_frames.py`` does.
``docs/gpu_tables.py`` says where its own come from.
``docs/results/your_videos.json`` is what ``docs/run_your_videos.py`` writes. The table of models
comes from the builders' signatures and docstrings, that of what recipes choose from their code.
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

from gpu_tables import gpu_parts
from markdown_table import table
from marked_pages import update_pages

from vcycle.config.evidence import (
    MANY_VIDEOS,
    Evidence,
    from_other_weights,
    from_random_weights,
)
from vcycle.config.run import Model
from vcycle.demo.comparison import RATES
from vcycle.models.build import FAMILIES
from vcycle.models.entries import MODELS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
TITLES = {
    "baseline": "baseline: constant mini-batch shape",
    "baseline_short": "baseline of as few steps",
    "small": "small clips only",
    "multigrid": "**the paper's cycles**",
    "anneal": "**anneal**: coarse to fine, once",
}
SOURCES = {
    "prepared": "**vcycle, prepared**",
    "floor_prepared": "floor of prepared",
    "raw": "**vcycle, raw**",
    "floor": "floor of raw",
    "decord": "decord, raw",
    "torchcodec": "torchcodec, raw",
    "pytorchvideo": "PyTorchVideo, raw",
}


def demo_table(summary: dict[str, Any]) -> str:
    """The rows of the demo as a Markdown table, with what it was measured on."""
    lines = [
        f"{TITLES[row['name']]} | {row['steps']:,} | {row['epochs']:.1f} | {row['clips']:,} "
        f"| {row['seconds']:.0f} | {row['speedup']:.1f}x | {_scores(row)}"
        for row in summary["rows"]
    ]
    return table(
        "`make demo` | steps | epochs | clips | seconds | speed-up | top-1", "lrrrrrr", lines
    )


def demo_elsewhere(elsewhere: dict[str, Any], here: dict[str, Any]) -> str:
    """What the same rows came to on another machine, which rounds otherwise."""
    scores = [f"{row['top1']:.1%}" for row in elsewhere["rows"]]
    first, _, _, *last = (row["top1"] for row in here["rows"])
    apart = max(first, *last) - min(first, *last)
    moved = abs(elsewhere["rows"][0]["top1"] - first)
    return (
        f"On another machine's CPU, which rounds otherwise, the same five runs, in the table's "
        f"order, came to {', '.join(scores[:-1])} and {scores[-1]}: the baseline moved by "
        f"{100 * moved:.1f} points, and rows 1, 4 and 5 lie {100 * apart:.1f} apart."
    )


def _scores(row: dict[str, Any]) -> str:
    if "full_shape_top1" not in row:
        return f"{row['top1']:.1%}"
    return f"{row['top1']:.1%}, at the full shape {row['full_shape_top1']:.1%}"


def demo_rates_table(results: dict[str, Any]) -> str:
    """Top-1 and loss of every row of the demo at every rate on the tuning videos."""
    lines = []
    runs = {(run["row"], run["rate"]): run for run in results["runs"]}
    tried = sorted({rate for _, rate in runs})
    for name in RATES:
        cells = [
            f"{run['loss']:.3f} ({run['top1']:.1%})" if (run := runs.get((name, rate))) else "-"
            for rate in tried
        ]
        chosen = results["chosen"].get(name)
        lines.append(f"`{name}` | {' | '.join(cells)} | {f'{chosen:g}' if chosen else '-'}")
    rates = " | ".join(f"{rate:g}" for rate in tried)
    return table(f"loss (top-1) at rate | {rates} | chosen", "l" + "r" * (len(tried) + 1), lines)


def demo_half(results: dict[str, Any], summary: dict[str, Any]) -> str:
    """Whether the demo's task is learnt in half the baseline's schedule."""
    half, (whole,) = results["half"], [r for r in summary["rows"] if r["name"] == "baseline"]
    return (
        f"On the machine of this check, another than README's table's, the baseline comes to "
        f"{half['top1']:.1%} in half its schedule, {half['steps']:,} steps, and to "
        f"{whole['top1']:.1%} in all of it (`python benchmarks/demo_rates.py --half`)."
    )


def loader_table(rows: list[dict[str, Any]]) -> str:
    """CPU milliseconds a clip, a line a source and a column a shape."""
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    cost = {(row["source"], row["shape"]): row["cpu_ms_per_clip"] for row in rows}
    sources = [name for name in SOURCES if (name, shapes[0]) in cost]
    lines = []
    for name in sources:
        cells = " | ".join(f"{cost[name, shape]:.1f}" for shape in shapes)
        lines.append(f"{SOURCES[name]} | {cells}")
    return table("CPU ms a clip | " + " | ".join(shapes), "l" + "r" * len(shapes), lines)


def slices_table(rows: list[dict[str, Any]]) -> str:
    """What decoding only the slices of the crop takes off a clip's CPU time, a line a shape.

    And the share of scaling in it.
    """
    lines = [
        f"{row['video']}, {row['size']} | {row['whole_bytes']:,.0f} | {row['shape']} "
        f"| {row['whole_ms']:.1f} | {row['sliced_ms'] / row['whole_ms'] - 1:+.0%} "
        f"| {row['scaling_ms'] / row['whole_ms']:.0%}"
        for row in rows
    ]
    return table(
        "video | bytes a frame | shape | CPU ms | with slices | of it, scaling", "lrlrrr", lines
    )


def kept_table(results: dict[str, Any]) -> str:
    """What clips cost that are cut from kept frames, and from their files."""
    lines = [
        f"{row['dataset']} | {row['videos']} | {row['frames']:,} | {row['bytes'] / 2**20:,.0f} "
        f"| {row['decode_seconds']:.1f} | {row['shape']} | {row['read_ms']:.2f} "
        f"| {row['kept_ms']:.2f}"
        for row in results["rows"]
    ]
    return table(
        "videos | number | frames | MiB a copy | all decoded, s | shape | read, ms | kept, ms",
        "lrrrrlrr",
        lines,
    )


def kills_text(results: dict[str, Any]) -> str:
    """What ``benchmarks/kills.py`` found."""
    found = "all equal to the last bit" if results["equal"] else "some of them different"
    phases = len(results["killed_in_phase"])
    return (
        f"SIGKILL came {results['kills']} times at random in {results['runs']} runs of "
        f"{results['phases']} phases, {results['killed']['later']} times after the first "
        f"checkpoint, in {phases} of the phases; each run went on by the same command. Losses, "
        f"scores, weights and optimizer states were {found} to those of a run left alone "
        f"(`python benchmarks/kills.py --kills {results['kills']}`)."
    )


def launches_text(results: dict[str, Any]) -> str:
    """Operations of a step with plain norms and with norm groups."""
    return (
        f"A SlowFast step of 128 clips of 8x112x112 in groups of 8 is {results['grouped']:,} "
        f"operations, {results['ratio']:.2f} times the {results['plain']:,} with plain batch norm "
        f"(`python benchmarks/gpu/launches.py`)."
    )


def short_clips_table(results: dict[str, Any]) -> str:
    """Seconds of a forward and a backward pass, with torch's convolutions and with ours."""
    lines = [
        f"`{row['model']}` | {row['clips']} x {row['shape']} | {1e3 * row['plain']:,.0f} "
        f"| {1e3 * row['short_clips']:,.0f} | {row['ratio']:.2f}"
        for row in results["rows"]
    ]
    return table(
        "model | mini-batch | torch, ms | with frames as channels, ms | ratio", "llrrr", lines
    )


def norm_table(results: dict[str, Any]) -> str:
    """Seconds of sub-batch norm over those of plain batch norm, forward and backward."""
    lines = []
    ratios: dict[str, list[str]] = {}
    for row in (*results["norm_layers"], *results["norm_models"]):
        name = f"`{row['model']}` at {row['shape']}" if "model" in row else _dims(row["shape"])
        ratios.setdefault(name, []).append(f"{row['ratio']:.2f}")
    lines += [f"{name} | {' | '.join(cells)}" for name, cells in ratios.items()]
    return table("input or model | contiguous | channels_last_3d", "lrr", lines)


def models_table() -> str:
    """A line a builder: its names with what they set, its docstring's first line, its options.

    Names with a shape in them, those of the released models, are left out.
    """
    names: dict[Any, list[str]] = {}
    for entry in MODELS:
        if entry.name.endswith(("_r50", "_r101", "_tiny")):
            builder = FAMILIES[entry.family]
            defaults = inspect.signature(builder).parameters
            fixed = ", ".join(
                f"{k}={v!r}" for k, v in entry.arguments.items() if v != defaults[k].default
            )
            text = f"`{entry.name}`" + (f" (`{fixed}`)" if fixed else "")
            names.setdefault(builder, []).append(text)
    lines = []
    for builder, texts in names.items():
        summary = inspect.getdoc(builder).split("\n")[0].rstrip(".").replace("``", "`")
        parameters = inspect.signature(builder).parameters.values()
        options = [f"`{p.name}={p.default!r}`" for p in parameters if p.name != "num_classes"]
        lines.append(f"{', '.join(texts)} | {summary} | {', '.join(options)}")
    return table("names | what it is | options", "lll", lines)


def choices_table() -> str:
    """What the recipes for one's own videos plan, and what it rests on: a line a case."""
    resnet, transformer, other = map(Model, ("resnet3d_tiny", "video_vit_tiny", "slowfast_r50"))
    many, few = MANY_VIDEOS, MANY_VIDEOS - 1

    def scratch(model: Model, num_videos: int, optimizer: str = "adamw") -> Evidence:
        return from_random_weights(model, num_videos, optimizer=optimizer)

    cases = [
        (f"`{resnet.name}`, random weights", "any", scratch(resnet, many, "muon")),
        (f"`{transformer.name}` with Muon", "any", scratch(transformer, many, "muon")),
        ("any other network with Muon", "any", scratch(other, many, "muon")),
        (f"`{resnet.name}` with AdamW", f"{many} or more", scratch(resnet, many)),
        (f"`{resnet.name}` with SGD", f"{many} or more", scratch(resnet, many, "sgd")),
        (f"`{transformer.name}` with AdamW", f"{many} or more", scratch(transformer, many)),
        (f"`{resnet.name}` with AdamW", "fewer", scratch(resnet, few)),
        (f"`{resnet.name}` with SGD", "fewer", scratch(resnet, few, "sgd")),
        (f"`{transformer.name}` with AdamW", "fewer", scratch(transformer, few)),
        ("any other network, random weights", f"{many} or more", scratch(other, many)),
        ("any other network, random weights", "fewer", scratch(other, few)),
        ("any network, other weights", f"{many} or more", from_other_weights(many)),
        ("any network, other weights", "fewer", from_other_weights(few)),
    ]
    lines = [
        f"{what} | {videos} | {case.share} | {float(1 / case.share):.1f}x "
        f"| {case.among} | {case.found}"
        for what, videos, case in cases
    ]
    head = (
        "what trains | videos | steps | fewer | nearest that was tried | what the anneal did there"
    )
    return table(head, "llrrll", lines)


def weights_table() -> str:
    """A line for each model that published Kinetics weights fit, with their file."""
    lines = [f"`{entry.name}` | `{entry.kinetics_file}`" for entry in MODELS if entry.kinetics_file]
    return table("model | file", "ll", lines)


def transcript(run: dict[str, str]) -> str:
    """A command and what it printed, as ``docs/run_your_videos.py`` kept them."""
    return f"```text\n$ {run['command']}\n{run['output']}\n```"


def _dims(shape: list[int]) -> str:
    return " x ".join(str(size) for size in shape)


def main(arguments: list[str]) -> int:
    """Update the pages, or only check them."""
    videos = _result("your_videos")
    pages = {
        ROOT / "README.md": {
            "demo": demo_table(_result("demo")),
            "demo-elsewhere": demo_elsewhere(_result("demo_elsewhere"), _result("demo")),
        },
        ROOT / "docs" / "demo.md": {
            "demo-rates": demo_rates_table(_result("demo_rates")),
            "demo-half": demo_half(_result("demo_rates"), _result("demo_elsewhere")),
        },
        ROOT / "docs" / "data.md": {
            "loader": loader_table(_result("loader")),
            "slices": slices_table(_result("slices")),
            "kept": kept_table(_result("kept_frames")),
        },
        ROOT / "docs" / "gpu.md": gpu_parts(RESULTS),
        ROOT / "docs" / "models.md": {
            "launches": launches_text(_result("launches")),
            "models": models_table(),
            "weights": weights_table(),
            "short_clips": short_clips_table(_result("short_clips")),
            "norm": norm_table(_result("norms")),
        },
        ROOT / "docs" / "which_schedule.md": {"choices": choices_table()},
        ROOT / "docs" / "your_videos.md": {
            **{mark: transcript(run) for mark, run in videos["runs"].items()},
            "kills": kills_text(_result("kills")),
            "about": f"Here it is on {videos['about']}:",
        },
    }
    check = "--check" in arguments
    outdated = update_pages(pages, check=check)
    return int(check and outdated > 0)


def _result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
