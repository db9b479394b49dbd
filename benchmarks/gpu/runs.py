"""Train a baseline and multigrid on generated videos, on a GPU within ten minutes.

    python benchmarks/gpu/runs.py /tmp/runs >> runs.jsonl

In: a folder, which gets the videos of ``vcycle demo`` and a run folder each. Out: a JSON line for
each of the two runs when it is done: steps, epochs, clips, seconds, accuracy, the seconds that were
spent waiting for clips, and the peak of memory. Run again, it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vcycle.config.run import Model
from vcycle.demo.comparison import demo_configs
from vcycle.demo.videos import write_videos
from vcycle.train.run import train


def main() -> None:
    """Train twice and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="resnet3d_tiny")
    parser.add_argument("--precision", choices=["32-true", "bf16-mixed"], default="32-true")
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    arguments = parser.parse_args()

    videos = arguments.folder / "videos"
    configs = demo_configs(videos, quick=False)
    num_videos = configs["baseline"].baseline.num_videos
    write_videos(
        videos,
        train_videos=num_videos,
        val_videos=num_videos // 5,
        num_workers=arguments.workers,
    )
    for name in ("baseline", "multigrid"):
        config = replace(
            configs[name],
            model=Model(arguments.model),
            precision=arguments.precision,
            data=replace(configs[name].data, num_workers=arguments.workers),
        )
        console = Console(stderr=True)
        result = train(config, arguments.folder / name, resume="auto", console=console)
        print(json.dumps(row(name, arguments, result)), flush=True)


def row(name: str, arguments: argparse.Namespace, result: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run."""
    on_gpu = torch.cuda.is_available()
    keys = ("steps", "epochs", "clips", "seconds", "top1", "waiting_seconds")
    return {
        "name": name,
        "model": arguments.model,
        "precision": arguments.precision,
        "workers": arguments.workers,
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "torch": torch.__version__,
        **{key: result[key] for key in keys},
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
    }


if __name__ == "__main__":
    main()
