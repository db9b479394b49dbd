"""What the loop adds to a step besides the model and the data, as a share of the step.

Times, for the demo's multigrid run, everything that ``train`` does in a step that a bare training
step does not: plan look-up, sampler (with what it costs to send requests to a worker), setting
the rate, the norm group and the random seed, logging and the live display. The step itself
(forward, backward, optimizer) is timed in the same process at the same shapes. Prints JSON.

    python benchmarks/loop_overhead.py
"""

from __future__ import annotations

import io
import json
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from torch.nn import functional as F

from vcycle.data.sampler import PlanSampler
from vcycle.demo.comparison import demo_configs
from vcycle.devices.fabric import Fabric
from vcycle.models import build_model, convert_batch_norm, set_norm_group
from vcycle.train.clock import HostClock
from vcycle.train.optim import make_optimizer
from vcycle.train.progress import Display
from vcycle.train.rates import set_learning_rate
from vcycle.train.run_folder import RunFolder
from vcycle.train.step_log import StepLog, StepTime


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    config = demo_configs(Path("videos"), quick=False)["multigrid"]
    plan = config.plan()
    model = convert_batch_norm(
        build_model(config.model.name, num_classes=12, **config.model.options)
    )
    optimizer = make_optimizer(model, config.optimizer)
    requests = iter(PlanSampler(plan, config.baseline.num_videos, config.seed))

    with tempfile.TemporaryDirectory() as folder:
        fabric, clock = Fabric(accelerator="cpu", devices=1), HostClock()
        rows = StepLog(RunFolder(Path(folder)), fabric=fabric, clock=clock)
        console = Console(file=io.StringIO(), force_terminal=True)
        with Display(
            plan, lambda _: 1.0, title="benchmark", first_step=0, console=console
        ) as display:

            def log(i: int) -> None:
                moment = clock.now()
                display.launch(plan[i])
                waits = [(moment, moment)]
                rows.add(
                    plan[i],
                    torch.zeros(2),
                    began=moment,
                    waits=waits,
                    ended=clock.now(),
                    left=display.seconds_left(),
                )
                rows.take_times()
                if i % 10 == 0:
                    rows.flush(waits=False)

            parts: dict[str, Callable[[int], object]] = {
                "plan look-up": lambda i: plan[i],
                "sampler": lambda i: pickle.dumps(next(requests)),
                "learning rate": lambda i: set_learning_rate(optimizer, plan[i].learning_rate),
                "norm group": lambda i: set_norm_group(model, plan[i].norm_group),
                "random seed": lambda i: torch.default_generator.manual_seed(i),
                "logging": log,
                "display": lambda i: display.step(StepTime(plan[i], 0.1, 0.0)),
            }
            microseconds = {name: 1e6 * _seconds(part, len(plan)) for name, part in parts.items()}

    def train_step(i: int) -> None:
        step = plan[i]
        set_norm_group(model, step.norm_group)
        clips = torch.zeros(step.batch_size, 3, *map(int, str(step.shape).split("x")))
        began = time.perf_counter()
        F.cross_entropy(model(clips), torch.zeros(step.batch_size, dtype=torch.int64)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step_seconds.append(time.perf_counter() - began)

    step_seconds: list[float] = []
    spread = range(0, len(plan), max(1, len(plan) // 60))
    for i in [0, *spread]:
        train_step(i)
    step_us = 1e6 * sum(step_seconds[1:]) / len(spread)
    overhead_us = sum(microseconds.values())
    result = {
        "microseconds_per_step": {name: round(us, 1) for name, us in microseconds.items()},
        "overhead_microseconds": round(overhead_us, 1),
        "step_microseconds": round(step_us, 1),
        "overhead_share": overhead_us / step_us,
    }
    print(json.dumps(result, indent=1))


def _seconds(part: Callable[[int], object], num_steps: int) -> float:
    """Mean seconds of one call over the plan's steps."""
    began = time.perf_counter()
    for i in range(num_steps):
        part(i)
    return (time.perf_counter() - began) / num_steps


if __name__ == "__main__":
    main()
