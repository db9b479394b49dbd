"""Write the generated parts of docs/plans.md: its figures, and the tables of plans.

python docs/draw_plans.py           write figures, docs/results/plans.json and the tables
python docs/draw_plans.py --check   exit 1 if the JSON, a table or a figure is out of date
"""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from markdown_table import table
from marked_pages import update_pages

from vcycle.cli.plan import PlanReport, plan_text, plan_values
from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_config_flags
from vcycle.config.from_flags import run_config
from vcycle.config.paper_recipes import PAPER_RECIPES, k400_slowfast_r50
from vcycle.report.plan_plot import draw_plans
from vcycle.report.plan_table import times_less
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan

DOCS = Path(__file__).parent
FIGURE = DOCS / "figures" / "figure2.svg"
SCHEDULES_FIGURE = DOCS / "figures" / "schedules.svg"
PRINTED = {
    "k400-slowfast-r50": "3.4x (section 4.1)",
    **{
        f"k400-slowfast-r50-{variant}": "3.4x (table 2)"
        for variant in ("16f", "64f", "320px", "pretrained")
    },
    "k400-i3d-r50": "3.3x (table 3)",
    "k400-i3d-nl-r50": "3.3x (table 3)",
    "ssv2-slowfast-r50": "3.4x (table 5)",
    "ssv2-slowfast-r50 --epoch-factor 1": "5.2x (table 5)",
    "ssv2-slowfast-r50 --epoch-factor 2": "2.6x (table 5)",
    "charades-slowfast-r50": "3.5x (table 6)",
    "charades-slowfast-r50 --epoch-factor 1": "5.3x (table 6)",
    "charades-slowfast-r50 --epoch-factor 2": "2.6x (table 6)",
}
RUNS = sorted(
    {*PAPER_RECIPES, *PRINTED},
    key=lambda run: ([*PAPER_RECIPES].index(run.partition(" ")[0]), run),
)
ABLATIONS = [
    "k400-slowfast-r50",
    *(f"k400-slowfast-r50 --long-cycle-shapes {number}" for number in (3, 2, 1)),
    *(f"k400-slowfast-r50 --short-cycle-shapes {number}" for number in (2, 1)),
    "k400-slowfast-r50 --no-fine-tuning",
    "k400-slowfast-r50 --baseline-steps 32685",
]
NAMED = [
    "k400-slowfast-r50",
    *(f"k400-slowfast-r50 --schedule {name}" for name in ("pass", "anneal", "off")),
]
PRINTED_PLAN = "k400-slowfast-r50 --schedule anneal"
OWN_VIDEOS = "finetune --num-videos 1000 --gpus 2"


def report_of(run: str) -> PlanReport:
    """What ``vcycle plan RUN`` prints, as a value."""
    parser = FlagParser(word="recipe")
    add_config_flags(parser)
    options = parser.parse_args(run.split())
    config = run_config(options)
    return PlanReport(config, options.given)


def values_of(run: str) -> dict[str, Any]:
    """What ``vcycle plan RUN --json`` prints, without the phases."""
    values = plan_values(report_of(run))
    del values["phases"], values["flags"]
    return values


def recipe_table(plans: dict[str, Any]) -> str:
    """The runs of the paper with their reductions."""
    return _table(
        (
            "plan",
            "baseline steps",
            "steps",
            "reduction",
            "paper",
            "multiply-adds",
            "frames",
            "spanned",
        ),
        [
            (
                f"`{run}`",
                f"{plans[run]['baseline_steps']:,}",
                f"{plans[run]['steps']:,}",
                f"{plans[run]['step_reduction']:.2f}x",
                PRINTED.get(run, ""),
                f"{plans[run]['compute_reduction']:.2f}x",
                f"{plans[run]['frame_reduction']:.2f}x",
                times_less(plans[run]["span_reduction"]),
            )
            for run in RUNS
        ],
    )


def ablation_table(plans: dict[str, Any]) -> str:
    """Epochs of the plans that have as many steps as the default."""
    return _table(
        ("plan", "steps", "epochs", "multiply-adds"),
        [
            (
                f"`{run}`",
                f"{plans[run]['steps']:,}",
                f"{plans[run]['epochs']:.0f}",
                f"{plans[run]['compute_reduction']:.2f}x",
            )
            for run in ABLATIONS
        ],
    )


def schedule_table(plans: dict[str, Any]) -> str:
    """The named schedules at their own lengths."""
    return _table(
        ("plan", "shapes and shares of the steps", "steps", "reduction", "epochs", "multiply-adds"),
        [
            (
                f"`{run}`",
                _shares(report_of(run).plan),
                f"{plans[run]['steps']:,}",
                f"{plans[run]['step_reduction']:.2f}x",
                f"{plans[run]['epochs']:.0f}",
                f"{plans[run]['compute_reduction']:.2f}x",
            )
            for run in NAMED
        ],
    )


def _shares(plan: Plan) -> str:
    steps: Counter[str] = Counter()
    for phase in plan.phases:
        steps[str(phase.base.shape)] += phase.steps
    return ", ".join(f"{shape} {count / len(plan):.0%}" for shape, count in steps.items())


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    align = "l" + "r" * (len(heading) - 1)
    return table(" | ".join(heading), align, (" | ".join(row) for row in rows))


def figure2() -> dict[str, Plan]:
    """The paper's four cases by title."""
    config = k400_slowfast_r50()
    both = config.multigrid
    cases = {
        "(a) baseline": Multigrid.off(),
        "(b) long cycle": replace(both, short_cycle=None),
        "(c) short cycle": replace(both, long_cycle=None),
        "(d) long and short cycle, the default": both,
    }
    plans = {title: Plan(config.baseline, multigrid) for title, multigrid in cases.items()}
    return _titled(plans)


def schedules() -> dict[str, Plan]:
    """The paper's schedule beside those of a single pass, by title."""
    config = k400_slowfast_r50()
    cases = {
        **{name: config.multigrid.with_schedule(name) for name in ("paper", "pass", "anneal")},
        "progressive resizing": Multigrid.progressive_resizing(),
    }
    return _titled({title: Plan(config.baseline, multigrid) for title, multigrid in cases.items()})


def _titled(plans: dict[str, Plan]) -> dict[str, Plan]:
    return {
        f"{title}: {len(plan):,} steps, {plan.epochs:.0f} epochs": plan
        for title, plan in plans.items()
    }


def main(arguments: list[str]) -> int:
    """Update the files, or only check them."""
    plans = {run: values_of(run) for run in (*RUNS, *ABLATIONS, *NAMED, OWN_VIDEOS)}
    notes = "\n".join(f"    - {note}" for note in plans[OWN_VIDEOS]["notes"])
    printed = textwrap.indent(plan_text(report_of(PRINTED_PLAN)), "    ", lambda _: True)
    printed = "\n".join(line.rstrip() for line in printed.splitlines())
    contents = {
        "recipes": recipe_table(plans),
        "ablations": ablation_table(plans),
        "finetune": f"    vcycle plan {OWN_VIDEOS}\n\n{notes}",
        "schedules": schedule_table(plans),
        "anneal": f"    $ vcycle plan {PRINTED_PLAN}\n\n{printed}",
    }
    files = {
        DOCS / "results" / "plans.json": json.dumps(plans, indent=1) + "\n",
        FIGURE: _figure_text(figure2()),
        SCHEDULES_FIGURE: _figure_text(schedules()),
    }
    check = "--check" in arguments
    outdated = update_pages({DOCS / "plans.md": contents}, check=check)
    if check:
        if sys.version_info < (3, 11):  # whose last matplotlib lays the same figure out differently
            del files[FIGURE]
        outdated += any(not file.exists() or file.read_text() != files[file] for file in files)
        return int(outdated > 0)
    for file, content in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    return 0


def _figure_text(plans: dict[str, Plan]) -> str:
    """Plans drawn as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / FIGURE.name
        draw_plans(plans, file)
        return file.read_text()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
