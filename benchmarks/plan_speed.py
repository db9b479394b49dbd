"""How long planning takes, as JSON.

Times the plan of 239 epochs of Kinetics, the look-up of a step and of its sample offset, and the
whole command in a process of its own. Each is the median of several runs.

    python benchmarks/plan_speed.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from vcycle.config.recipes import recipe

RECIPE = "k400-slowfast-r50"
RUNS = 7
LOOK_UPS = 10_000


def main() -> None:
    """Measure and print."""
    config = recipe(RECIPE)
    plan = config.plan()
    steps = [i * len(plan) // LOOK_UPS for i in range(LOOK_UPS)]
    command = [sys.executable, "-m", "vcycle", "plan", RECIPE]
    result = {
        "recipe": RECIPE,
        "baseline_epochs": plan.baseline.epochs,
        "steps": len(plan),
        "plan_seconds": median_seconds(config.plan),
        "step_seconds": median_seconds(lambda: [plan[i] for i in steps]) / LOOK_UPS,
        "offset_seconds": median_seconds(lambda: [plan.first_sample(i) for i in steps]) / LOOK_UPS,
        "command_seconds": median_seconds(
            lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        ),
    }
    print(json.dumps(result, indent=1))


def median_seconds(action: Callable[[], object]) -> float:
    """The median over ``RUNS`` calls."""
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
