"""Draw the pictures of docs/plans.md: the paper's figure 2 for the Kinetics run.

    python docs/draw_plans.py

writes ``docs/pictures/figure2.svg`` and one picture for each of its four plans.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vcycle.recipes import k400_slowfast_r50
from vcycle.report.plan_picture import draw_plans
from vcycle.schedule.plan import Multigrid, Plan

FOLDER = Path(__file__).parent / "pictures"


def figure2() -> dict[str, tuple[str, Plan]]:
    """The four cases by file name: title and plan."""
    config = k400_slowfast_r50()
    both = config.multigrid
    cases = {
        "baseline": ("(a) baseline", Multigrid.off()),
        "long": ("(b) long cycle", replace(both, short_cycle=None)),
        "short": ("(c) short cycle", replace(both, long_cycle=None)),
        "both": ("(d) long and short cycle, the default", both),
    }
    plans = {}
    for name, (title, multigrid) in cases.items():
        plan = Plan(config.baseline, multigrid)
        steps = f"{len(plan):,} steps, {plan.epochs:.0f} epochs"
        plans[name] = (f"{title}: {steps}", plan)
    return plans


def main() -> None:
    """Write the pictures."""
    FOLDER.mkdir(exist_ok=True)
    plans = figure2()
    for name, (title, plan) in plans.items():
        draw_plans({title: plan}, FOLDER / f"plan-{name}.svg")
    draw_plans(dict(plans.values()), FOLDER / "figure2.svg")


if __name__ == "__main__":
    main()
