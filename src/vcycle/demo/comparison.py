"""The demo: one small model trained five times on the same generated videos.

In: a folder. Out: in it the videos, a run folder for each of baseline, shortened baseline, small
clips, the paper's cycles and anneal, ``summary.json`` with a row for each, and ``curves.png``. All
share code, data, machine and validation videos; only the plan and its rate differ, and the shape of
the small clips.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import vcycle
from vcycle.config.fields import read_saved, read_values
from vcycle.config.recipes import demo
from vcycle.config.run import RunConfig
from vcycle.config.sizing import reshaped
from vcycle.data.atomic import write_atomic
from vcycle.demo.videos import write_videos
from vcycle.evaluate.run import score_run
from vcycle.report.curves import draw_curves
from vcycle.schedule.cycles import SQRT_HALF
from vcycle.schedule.messages import duration
from vcycle.schedule.multigrid import Multigrid
from vcycle.train.activity import progress_bar
from vcycle.train.lock import LOCK_NAME
from vcycle.train.run import train
from vcycle.train.same_run import config_differences

TITLES = {
    "baseline": "baseline",
    "baseline_short": "short baseline",
    "small": "small clips",
    "multigrid": "the paper's cycles",
    "anneal": "anneal",
}
RATES = {
    "baseline": 0.016,
    "baseline_short": 0.008,
    "small": 0.008,
    "multigrid": 0.008,
    "anneal": 0.016,
}
"""Of 8 clips at the full shape. Each row tried the same three, those whose best was the largest a
fourth, and tuning videos chose (``benchmarks/demo_rates.py``)."""


def demo_configs(
    videos: Path, *, quick: bool, rates: Mapping[str, float] = RATES
) -> dict[str, RunConfig]:
    """The recipe ``demo`` as each row of the summary runs it, at its rate in ``rates``.

    All but the baseline take as many steps as the paper's cycles.
    """
    recipe = demo(quick=quick)
    recipe = replace(recipe, data=replace(recipe.data, manifest=str(videos)))
    cycles, num_steps = recipe.multigrid, len(recipe.plan())
    schedules = {
        "baseline": Multigrid.off(),
        "baseline_short": Multigrid.off(steps=num_steps),
        "small": Multigrid.off(steps=num_steps),
        "multigrid": cycles,
        "anneal": replace(cycles.with_schedule("anneal"), steps=num_steps),
    }
    configs = {}
    for name, multigrid in schedules.items():
        rate = replace(recipe.baseline.learning_rate, base=rates[name])
        baseline = replace(recipe.baseline, learning_rate=rate)
        configs[name] = replace(recipe, baseline=baseline, multigrid=multigrid)
    configs["small"] = _with_small_clips(configs["small"], rate_exponent=cycles.rate_exponent)
    return configs


def _with_small_clips(config: RunConfig, *, rate_exponent: float) -> RunConfig:
    """Clips of T/2 x H/sqrt(2) over the same span and area, for the whole run: 4B, a higher rate.

    The paper's small-shape baseline (figure 3).
    """
    full, growth = config.baseline, 4
    shape = config.multigrid.rule.scale(full.shape, frames=0.5, side=SQRT_HALF)
    rate = replace(full.learning_rate, base=full.learning_rate.base * growth**rate_exponent)
    grown = replace(full, batch_size=growth * full.batch_size, learning_rate=rate)
    small = reshaped(replace(config, baseline=grown), shape, given=())
    return replace(small, notes=config.notes)


def run_demo(folder: str | Path | None = None, *, quick: bool = False) -> list[dict[str, Any]]:
    """Write the videos, train five times, compare; returns the rows of ``summary.json``.

    A run that this code and configuration already finished in ``folder`` is not done again, one
    that was interrupted goes on. Raises ValueError if ``folder`` holds something else.
    """
    console = Console()
    folder = Path(folder or ("runs/demo-quick" if quick else "runs/demo")).absolute()
    videos = folder / "videos"
    configs = demo_configs(videos, quick=quick)
    num_videos = configs["baseline"].baseline.num_videos
    with progress_bar("writing videos", console) as progress:
        write_videos(videos, train_videos=num_videos, val_videos=num_videos // 5, progress=progress)
    results = {}
    for name, config in configs.items():
        run, done = folder / name, _done_before(folder / name, config)
        if done is not None:
            console.print(f"{TITLES[name]}: done before, in {run}; delete it to train again")
        results[name] = done or _train(config, run, title=TITLES[name], console=console)
    rows = _rows(results)
    small = rows[list(configs).index("small")]
    seen = score_run(configs["baseline"], folder / "small", split="val").values
    small["full_shape_top1"] = seen["top1"]
    write_atomic(folder / "summary.json", json.dumps({"quick": quick, "rows": rows}, indent=1))
    draw_curves(
        {TITLES[name]: folder / name for name in configs},
        folder / "curves.png",
        title="The same model and videos, five schedules",
    )
    console.print(_table(rows))
    console.print(f"small clips at the full shape: {small['full_shape_top1']:.1%}")
    console.print(f"Rows: {folder / 'summary.json'}  plot: {folder / 'curves.png'}")
    return rows


def _done_before(run: Path, config: RunConfig) -> dict[str, Any] | None:
    """The result of a complete run of this code and configuration."""
    if not (_same(run, config) and (run / "result.json").is_file()):
        return None
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return result


def _same(run: Path, config: RunConfig) -> bool:
    """Whether a run is of this code and configuration, wherever its folder was then."""
    try:
        code = (run.parent / f"{run.name}.sha256").read_text()
        before = read_saved(run / "config.yaml")
    except (FileNotFoundError, ValueError):
        return False
    return code == _code_hash() and not config_differences(before, config)


def _train(config: RunConfig, run: Path, *, title: str, console: Console) -> dict[str, Any]:
    """Go on with an interrupted run; else train anew, and keep an outdated run of the demo."""
    is_same = _same(run, config)
    files = {each.name: each for each in run.iterdir()} if run.exists() else {}
    is_outdated = not is_same and bool(files.keys() - {LOCK_NAME})
    if is_outdated and not _is_of_demo(run):
        raise ValueError(f"{run}: not a run of the demo; choose another --folder")
    if is_outdated and "metrics.jsonl" in files and files["metrics.jsonl"].stat().st_size:
        others = (run.with_name(f"{run.name}-{number}") for number in count(1))
        kept = next(each for each in others if not each.exists())
        run.rename(kept)
        console.print(f"{title}: trained anew; the run of other code or settings is now {kept}")
    elif is_outdated:  # it was killed before its first step
        shutil.rmtree(run)
    run.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(run.parent / f"{run.name}.sha256", _code_hash())
    return train(config, run, resume="auto" if is_same else False, title=title, console=console)


def _is_of_demo(run: Path) -> bool:
    """Whether its configuration says so; one that was killed as it began may have none yet."""
    if not (run / "config.yaml").exists():
        return (run.parent / f"{run.name}.sha256").is_file()
    try:
        return read_values(run / "config.yaml").get("recipe") == "demo"
    except ValueError:
        return False


def _code_hash() -> str:
    digest = hashlib.sha256()
    for file in sorted(Path(vcycle.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _rows(results: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    keys = ("steps", "epochs", "clips", "seconds", "top1", "waiting_seconds")
    full = results["baseline"]["seconds"]
    return [
        {
            "name": name,
            **{key: result[key] for key in keys},
            "speedup": full / result["seconds"],
        }
        for name, result in results.items()
    ]


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table()
    for heading in ("", "steps", "epochs", "clips", "training", "waiting", "top-1", "speed-up"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        table.add_row(
            TITLES[row["name"]],
            f"{row['steps']:,}",
            f"{row['epochs']:.1f}",
            f"{row['clips']:,}",
            duration(row["seconds"]),
            f"{row['waiting_seconds'] / row['seconds']:.1%}",
            f"{row['top1']:.1%}",
            f"{row['speedup']:.2f}x",
        )
    return table
