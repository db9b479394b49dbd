"""``vcycle eval``: the accuracy of a checkpoint, over any views of any split.

In: a run folder or a file of weights, and flags. Out: the scores, printed, and drawn if asked.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

from vcycle.cli.launched import is_first
from vcycle.cli.waiting import starting_pytorch, waiting_for
from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import add_field_flags, short_flag
from vcycle.config.run import RunConfig
from vcycle.data.atomic import check_output
from vcycle.evaluate.frontier import multiply_adds_text
from vcycle.evaluate.metric_names import METRICS, SCORE_COLUMNS, metric_of, nonfinite_line
from vcycle.schedule.messages import counted
from vcycle.schedule.shape import Shape

_OF_BATCHES = ("seed", "data.inverse_uniform", "multigrid.norm_group")
"""Fields of training batches, which an evaluation draws for its norm statistics alone."""
_NOT_LISTED = (
    *("baseline.learning_rate.base", "log", "model.freeze", "model.weights"),
    *("baseline.batch_size", "multigrid.epoch_factor"),
)
"""Short flags of training, which are refused or decide the shapes of ``--shapes all`` alone."""


def add_eval_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle eval``, and those of fields."""
    parser.usage = f"{parser.prog} RUN [RUN ...] [flags]"
    add_field_flags(parser, unlisted=_NOT_LISTED)
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="RUN",
        help="a run folder; or weights: of one, or published ones, which need --data and more",
    )
    parser.add_argument("--split", default="val", help="of the manifest (default: val)")
    parser.add_argument(
        "--best", action="store_true", help="not the newest checkpoint but the best"
    )
    parser.add_argument(
        "--shapes",
        metavar="all|TxHxW,...",
        help="also at these shapes; all: every one that it was trained on",
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the accuracy of --shapes over their costs, PNG or SVG"
    )
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="call the function of your own code that a run names as its model",
    )
    parser.add_argument(
        "--scores", metavar="FILE", help="write the scores of every video as CSV, of one run"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: a list if there are two")
    parser.set_defaults(run=run_eval_command)


def _check_fields(options: argparse.Namespace, config: RunConfig) -> None:
    """Raise ValueError for fields that decide nothing here: of training batches, or of the plan."""
    if "baseline.batch_size" in options.fields and not config.evaluation.precise_bn:
        raise ValueError(
            "--batch-size: it is of training batches; views are scored --evaluation.batch_size "
            "at a time"
        )
    for field in options.fields:
        flag = short_flag(field) or f"--{field}"
        if field in _OF_BATCHES and not config.evaluation.precise_bn:
            raise ValueError(
                f"{flag}: it is of training batches, and changes no score; leave it out, or give "
                f"--evaluation.precise_bn, batches that norm statistics are estimated from"
            )
        is_of_plan = field.startswith("multigrid.") and field not in _OF_BATCHES
        if is_of_plan and options.shapes != "all":
            raise ValueError(f"{flag}: it is of the plan, which --shapes all scores; leave it out")


def run_eval_command(options: argparse.Namespace) -> None:
    """Score one run after the other and print. Raises ValueError for what a user got wrong."""
    if options.scores and len(options.folders) > 1:
        raise ValueError("--scores: give one run at a time; each has scores of its own")
    if options.scores:
        _check_scores(Path(options.scores))
    if options.plot is not None and options.shapes is None:
        raise ValueError("--plot: it draws several shapes; give --shapes all too")
    if options.plot is not None:
        from vcycle.report.plot_file import check_plot_file

        check_plot_file(Path(options.plot))

    with starting_pytorch():
        from vcycle.devices.process_group import destroy_process_group
        from vcycle.evaluate.run import score_run
        from vcycle.evaluate.sources import FROM_A_FILE, evaluation_config

    runs = [
        (path, evaluation_config(Path(path), options.fields, trust_code=options.trust_code))
        for path in options.folders
    ]
    for path, config in runs:
        _check_fields(options, config)
        if config.recipe == FROM_A_FILE and options.shapes == "all":
            raise ValueError(
                f"--shapes all: {path} does not say what it was trained on; give --shapes "
                f"{config.baseline.shape},..."
            )

    scored = []
    for folder, config in runs:
        with waiting_for(f"scoring {folder}"):
            run = score_run(
                config,
                Path(folder),
                split=options.split,
                best=options.best,
                shapes=_shapes(config, options.shapes),
            )
        scored.append(run)
        if is_first():
            _warn_of_bad_videos(folder, run.values["bad_videos"])
            if line := nonfinite_line(run.values):
                print(f"warning: {folder}: {line}", file=sys.stderr)
        if is_first() and not options.json:
            print(_fitted(_line(folder, run.values)), flush=True)
    destroy_process_group()
    if not is_first():
        return
    if options.json:
        named = [{"folder": f, **r.values} for f, r in zip(options.folders, scored, strict=True)]
        print(json.dumps(scored[0].values if len(scored) == 1 else named, indent=1), flush=True)
    # What was scored has been said, if a file cannot be written.
    if options.scores:
        scored[0].write_scores(Path(options.scores))
    if options.plot is not None:
        from vcycle.report.frontier_plot import draw_frontiers

        shapes = {f: r.values["shapes"] for f, r in zip(options.folders, scored, strict=True)}
        draw_frontiers(shapes, Path(options.plot))


def _check_scores(file: Path) -> None:
    """Raise ValueError unless it can be written, in place of scores at most, not of a manifest."""
    check_output(file, ".csv", flag="--scores")
    if file.exists():
        with file.open(errors="replace") as lines:
            if not lines.readline(100).startswith(f"{','.join(SCORE_COLUMNS)},"):
                raise ValueError(f"--scores {file}: it is there, and no scores; name another")


def _warn_of_bad_videos(folder: str, bad: dict[str, str]) -> None:
    """Say which videos have no score, because they could not be read."""
    if bad:
        path, reason = next(iter(bad.items()))
        more = f", and {len(bad) - 1} more (--json lists them)" if len(bad) > 1 else ""
        print(
            f"warning: {folder}: {counted(len(bad), 'video')} could not be read: {path} "
            f"({reason}){more}",
            file=sys.stderr,
        )


def _shapes(config: RunConfig, text: str | None) -> list[Shape]:
    """The shapes that a flag asks for, cheapest first."""
    if text is None:
        return []
    if text == "all":
        shapes = {config.baseline.shape, *config.plan().shapes}
    else:
        shapes = {Shape.parse(each) for each in text.split(",")}
    return sorted(shapes, key=lambda shape: shape.num_pixels)


def _line(folder: str, result: dict[str, Any]) -> str:
    scores = ", ".join(_score(key, result) for key in METRICS if key in result)
    line = (
        f"{folder}: {scores} on {counted(result['videos'], 'video')} of {result['split']}, "
        f"{result['coverage']:.1%} of those listed "
        f"({counted(result['views'], 'view')} each, {_origin(result)})"
    )
    rows = result.get("shapes", [])
    lines = [
        f"  {row['shape']:>12}  {row[metric_of(row)]:7.2%}"
        f"  {multiply_adds_text(row):>18}{_mark(row, 'multiply_adds')} multiply-adds"
        f"  {row['milliseconds']:9.2f}{_mark(row, 'milliseconds')} ms a clip"
        for row in rows
    ]
    note = ["  * no shape that costs less of it is as accurate"] if rows else []
    return "\n".join([line, *lines, *note])


def _fitted(lines: str) -> str:
    """Lines that a terminal would break in the middle of a word, broken between words."""
    if not sys.stdout.isatty():
        return lines
    first, *rest = lines.splitlines()
    width = shutil.get_terminal_size().columns
    shown = textwrap.fill(
        first, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "\n".join([shown, *rest])


def _mark(row: dict[str, Any], cost: str) -> str:
    return "*" if cost in row["frontier"] else " "


def _origin(result: dict[str, Any]) -> str:
    steps = result["steps"]
    return "imported weights" if steps is None else f"after {counted(steps, 'step')}"


def _score(key: str, result: dict[str, Any]) -> str:
    name = key.replace("_", " ")
    if key not in result.get("intervals", {}):
        return f"{name} {result[key]:.2%}"
    low, high = result["intervals"][key]
    return f"{name} {result[key]:.2%} [{low:.1%}, {high:.1%}]"
