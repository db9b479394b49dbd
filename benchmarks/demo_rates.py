"""Choose the demo's rates: the same search for each of its rows, on its training videos alone.

    python benchmarks/demo_rates.py                       # every row
    python benchmarks/demo_rates.py --rows anneal small   # some of them
    python benchmarks/demo_rates.py --half                # the baseline in half of its schedule

A run trains on the first three quarters of the training videos and is scored on the last; the
least loss there is chosen. The middle three of the rates are tried first; while the best is at one
end of what was tried, so is the next beyond it. It goes on where it was stopped. Writes
docs/results/demo_rates.json after every run, with what is known so far; ``RATES`` in
``vcycle.demo.comparison`` holds the choices, and a test compares the two. Half the baseline's
schedule, at its rate and scored on the validation videos as the demo's rows are, tells whether the
task is learnt by then.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from study_rates import best_rate, wanted_rates
from vcycle.config.run import RunConfig
from vcycle.data.atomic import write_atomic
from vcycle.data.manifest import Manifest
from vcycle.demo.comparison import RATES, demo_configs
from vcycle.demo.videos import write_videos
from vcycle.train.run import train

ALLOWED = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
TUNING_SHARE = 4
"""One in so many training videos is for tuning."""
SCORES = ("steps", "videos", "loss", "top1")
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "demo_rates.json"


def write_tuning_part(videos: Manifest, folder: Path) -> Manifest:
    """A manifest of the training videos alone, the last quarter of which validates."""
    train_videos = videos.split("train").videos
    first = len(train_videos) - len(train_videos) // TUNING_SHARE
    manifest = Manifest(
        folder,
        videos.classes,
        tuple(
            replace(
                video,
                split="train" if number < first else "val",
                path=Path(videos.locate(video).uri).absolute().as_uri(),
            )
            for number, video in enumerate(train_videos)
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    manifest.write()
    return manifest


def tuning_config(row: str, rate: float, manifest: Manifest) -> RunConfig:
    """A row of the demo at a rate, over the same number of steps, scored once."""
    config = demo_configs(manifest.root, quick=False, rates={**RATES, row: rate})[row]
    return replace(
        config,
        baseline=replace(config.baseline, num_videos=len(manifest.split("train"))),
        evaluation=replace(config.evaluation, times=1),
    )


def half_config(videos: Manifest) -> RunConfig:
    """The demo's baseline with its schedule shortened to half of the steps, scored once."""
    config = demo_configs(videos.root, quick=False)["baseline"]
    return replace(
        config,
        multigrid=replace(config.multigrid, steps=config.baseline.steps // 2),
        evaluation=replace(config.evaluation, times=1),
    )


def table(results: list[dict[str, Any]], half: dict[str, Any] | None = None) -> dict[str, Any]:
    """What is known so far: every run, and the choice of each row that has tried all rates."""
    chosen = {}
    for name in RATES:
        losses = {each["rate"]: each["loss"] for each in results if each["row"] == name}
        if not wanted_rates(ALLOWED, losses):
            chosen[name] = best_rate(losses)
    return {"chosen": chosen, "half": half, "runs": results}


def main() -> None:
    """Carry out the runs that are not complete."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("runs/demo-rates"))
    options = parser.parse_args()
    num_videos = demo_configs(Path(), quick=False)["baseline"].baseline.num_videos
    videos = write_videos(
        options.folder / "videos", train_videos=num_videos, val_videos=num_videos // 5
    )
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": []}
    half = known.get("half")
    results = {(each["row"], each["rate"]): each for each in known["runs"]}

    def publish() -> None:
        ordered = sorted(results.values(), key=lambda each: (each["row"], each["rate"]))
        write_atomic(RESULTS, json.dumps(table(ordered, half), indent=1) + "\n")

    if options.half:
        result = train(half_config(videos), options.folder / "half", resume="auto")
        half = {key: result[key] for key in SCORES}
        publish()
        return
    part = write_tuning_part(videos, options.folder / "part")
    for row in options.rows:
        while wanted := wanted_rates(
            ALLOWED, {rate: each["loss"] for (name, rate), each in results.items() if name == row}
        ):
            rate = wanted[0]
            config = tuning_config(row, rate, part)
            result = train(config, options.folder / f"{row}-{rate:g}", resume="auto")
            scores = {key: result[key] for key in SCORES}
            results[row, rate] = {"row": row, "rate": rate, **scores}
            publish()


if __name__ == "__main__":
    main()
