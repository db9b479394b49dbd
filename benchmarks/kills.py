"""Whether runs that are killed again and again end as one that never was: equal to the last bit.

Trains a small model on generated videos with decoding workers, through every phase of a multigrid
plan, once undisturbed; then, with ``resume="auto"``, in processes that SIGKILL ends at random
moments: while they start, train, validate, or write a checkpoint. Losses, scores, weights and
the optimizer's state must be equal. Prints JSON; the exit code is 1 if anything differs.

    python benchmarks/kills.py --kills 100
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vcycle.config.run import Checkpoint, Data, Evaluation, Model, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.demo.videos import write_videos
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape
from vcycle.train.run import train

_TIMES = (
    *("seconds", "seconds_left", "clips_per_second", "waiting_seconds"),
    "validation_seconds",
)


def main() -> int:
    """Kill, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        result = compare(Path(folder), num_kills=options.kills, draw=random.Random(options.seed))
    print(json.dumps(result, indent=1))
    return 0 if result["equal"] else 1


def run_config(videos: Path) -> RunConfig:
    """Every phase of a plan in a few dozen steps, a checkpoint after every third."""
    return RunConfig(
        recipe="kills",
        baseline=Baseline(
            Shape(8, 32, 32), 4, 132, 24, LearningRate(0.01, warmup_steps=8), (66, 100)
        ),
        multigrid=Multigrid(norm_group=4),
        data=Data(str(videos), stride=1, short_side=(36, 48), num_workers=2),
        model=Model("resnet3d_tiny", {"width": 4}),
        evaluation=Evaluation(times=4, batch_size=6, precise_bn=2),
        checkpoint=Checkpoint(steps=3),
        threads=1,
    )


def compare(folder: Path, *, num_kills: int, draw: random.Random) -> dict[str, Any]:
    """Kill runs until there were so many kills; let the last one end, too."""
    write_videos(folder / "videos", train_videos=24, val_videos=12, seed=0, num_workers=1)
    config = run_config(folder / "videos")
    whole = folder / "whole"
    began = time.monotonic()
    assert ends(config, whole, within=None)
    seconds = time.monotonic() - began
    kills: Counter[str] = Counter()
    killed_after: Counter[int] = Counter()
    differing: list[str] = []
    num_runs = 0
    while kills.total() < num_kills:
        run = folder / f"run{num_runs}"
        num_runs += 1
        before, began = kills.total(), time.monotonic()
        # A run that is killed too early again and again would not go on.
        while not ends(config, run, within=draw.uniform(0, 1.2 * seconds)):
            steps = num_steps(run)
            kills["before the first checkpoint" if steps is None else "later"] += 1
            if steps is not None:
                killed_after[config.plan().phase_of(min(steps, len(config.plan()) - 1))] += 1
            if kills.total() == num_kills:
                assert ends(config, run, within=None)
                break
        if kills.total() == before:  # the first may have stood still
            seconds = min(seconds, time.monotonic() - began)
        differing += [f"{run.name}: {each}" for each in differences(whole, run)]
    return {
        "kills": kills.total(),
        "runs": num_runs,
        "killed": dict(kills),
        "killed_in_phase": dict(sorted(killed_after.items())),
        "steps": len(config.plan()),
        "phases": len(config.plan().phases),
        "seconds_undisturbed": seconds,
        "equal": not differing,
        "differing": differing,
    }


def ends(config: RunConfig, run: Path, *, within: float | None) -> bool:
    """Train in a process of its own; False if SIGKILL ended it because time was up."""
    process = os.fork()
    if not process:
        _train(config, run)
    deadline = None if within is None else time.monotonic() + within
    while True:
        done, status = os.waitpid(process, os.WNOHANG if deadline is not None else 0)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code:
                raise RuntimeError(f"a run ended with exit code {code}")
            return True
        assert deadline is not None
        if time.monotonic() >= deadline:
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.001)


def _train(config: RunConfig, run: Path) -> None:
    """Train, and exit."""
    code = 1
    try:
        train(config, run, resume="auto", console=Console(file=io.StringIO()))
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def num_steps(run: Path) -> int | None:
    """Steps of the newest checkpoint, if there is one."""
    file = run / "checkpoint.pt"
    return int(load_checkpoint(file)["next_step"]) if file.exists() else None


def differences(whole: Path, run: Path) -> Iterator[str]:
    """What differs between two complete runs, times aside."""
    for name in ("metrics.jsonl", "validation.jsonl", "phases.jsonl"):
        ours, theirs = read_rows(whole / name), read_rows(run / name)
        if name == "phases.jsonl":  # all else in it is times
            ours, theirs = ([{"phase": row["phase"]} for row in rows] for rows in (ours, theirs))
        for rows in (ours, theirs):
            for row in rows:
                for key in _TIMES:
                    row.pop(key, None)
        if ours != theirs:
            yield name
    for name in ("checkpoint.pt", "best.pt"):
        states = [load_checkpoint(folder / name) for folder in (whole, run)]
        for state in states:
            del state["seconds"]
        yield from (f"{name}: {each}" for each in _unequal(states[0], states[1]))


def _unequal(ours: Any, theirs: Any, name: str = "") -> Iterator[str]:
    """Names of tensors and values that are not the same."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for key in ours:
            yield from _unequal(ours[key], theirs[key], f"{name}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from _unequal(one, other, f"{name}.{place}")
    elif isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        if not torch.equal(ours, theirs):
            yield name
    elif ours != theirs:
        yield name


if __name__ == "__main__":
    sys.exit(main())
