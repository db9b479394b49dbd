"""``vcycle train``: train on a folder of videos, or as a recipe says.

In: a folder, a table or a manifest, or a recipe's name; and flags. Out: a run folder.
"""

from __future__ import annotations

import argparse
import re
import shlex
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from vcycle.cli.data import DIVIDE
from vcycle.cli.gpus import check_gpus, launch
from vcycle.cli.launched import (
    is_by_gpus,
    is_first,
    is_first_here,
    is_launched,
    is_one_of_several,
)
from vcycle.cli.own_data import manifest_of, short_name
from vcycle.cli.own_weights import use_model_of_weights
from vcycle.cli.plan import PlanReport, plan_text
from vcycle.cli.precision import in_fastest_precision, is_left_to_machine
from vcycle.cli.run_folders import ChosenRun, choose_run, locked_folder
from vcycle.cli.waiting import starting_pytorch
from vcycle.config.fields import changed, check_own_code, read_config, read_values
from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import PLAN_FLAGS, add_config_flags, check_flags
from vcycle.config.from_flags import run_config
from vcycle.config.pretrained import check_weights, check_weights_file
from vcycle.config.recipes import FIXED_RECIPES, USER_RECIPES, recipe
from vcycle.config.run import Model, RunConfig
from vcycle.data.manifest import Manifest
from vcycle.datasets.choices import Choices
from vcycle.evaluate.metric_names import BY_CLASS, misses_rare_classes
from vcycle.schedule.arguments import nearest
from vcycle.schedule.messages import counted
from vcycle.schedule.multigrid import Multigrid

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_train_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle train``: those of every run, and where it writes."""
    add_config_flags(parser)
    parser.usage = (
        f"{parser.prog} VIDEOS [flags], where VIDEOS is a folder, a table or a manifest; "
        f"{parser.prog} RECIPE [flags]; {parser.prog} --config FILE [flags]; or "
        f"{parser.prog} --resume RUN [flags]"
    )
    parser.add_argument("--folder", help="run folder; runs/NAME-1, -2, ... unless given")
    parser.add_argument("--time", metavar="30m", help="the plan that fits so many s, m, h or d")
    parser.add_argument("--dry-run", action="store_true", help="stop before the first step")
    parser.add_argument(
        "--flip",
        action=argparse.BooleanOptionalAction,
        help="mirror clips of VIDEOS, or not; kept for the next time",
    )
    for flag, settings in DIVIDE:
        parser.add_argument(flag, **settings)
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="RUN",
        help="go on with the run in that folder, or in --folder; auto: or begin, if there is none",
    )
    parser.set_defaults(run=run_train_command, is_logged=True)


def run_train_command(options: argparse.Namespace) -> None:
    """Train. Raises ValueError for what a user got wrong."""
    seconds = parse_time(options.time) if options.time is not None else None
    check_flags([*options.given, *(["--time"] if seconds is not None else [])])
    num_gpus = None if is_launched() else options.gpus
    if num_gpus is not None:
        check_gpus(num_gpus)
    names_its_folder = options.resume not in (False, True, "auto")
    if options.resume in (True, "auto") and options.recipe is None and options.config is None:
        raise ValueError("--resume: give --resume RUN, or the whole command that began the run")
    videos = None if names_its_folder else _own_videos(options)
    if videos is not None:
        _check_before_index(options)
        _use_videos(options, videos)
    elif given := _chosen(options).given:
        flag = next(iter(given))
        raise ValueError(f"{flag}: it is for a folder or table of videos; leave it out")
    use_model_of_weights(options)
    name = short_name(videos) if videos is not None else options.recipe or "run"
    if names_its_folder:
        run = _resumed(Path(options.resume), options)
    else:
        run = choose_run(options, _new_config(options), name, seconds)
    if run.resume is False:
        check_weights(run.config)
    if num_gpus is not None and num_gpus > 1:
        launch(
            num_gpus,
            options.words + ([] if names_its_folder else ["--folder", str(run.folder)]),
        )
    is_chosen_here = options.folder is None and run.resume is False and not options.dry_run
    with ExitStack() as stack:
        if is_chosen_here and is_first():  # so that another command takes another
            folder, lock = locked_folder(name)
            stack.callback(lock.release)
            run = replace(run, folder=folder)
        _train(run, options)


def _new_config(options: argparse.Namespace) -> RunConfig:
    """What a new run would be; what a user got wrong is told of before PyTorch starts."""
    if options.recipe not in USER_RECIPES:
        options = argparse.Namespace(**{**vars(options), "gpus": None})  # the batch is the recipe's
    config = _absolute(run_config(options))
    if options.config is not None:
        check_own_code(config, options.fields, Path(options.config))
    config.data.given_manifest()
    config.grid_range()
    if is_left_to_machine(options):
        config = _in_own_precision(config, options)
    return config


def parse_time(text: str) -> float:
    """Seconds of ``90s``, ``30m``, ``2h``, ``1d`` or ``1h30m``. Raises ValueError."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not seconds > 0:
        raise ValueError(f"--time {text}: give a time such as 90s, 30m, 2h or 1h30m")
    return seconds


def _own_videos(options: argparse.Namespace) -> Path | None:
    """What the one word names, if it is no recipe: a path, there or not."""
    word = options.recipe
    if word is None or options.config is not None:
        return None
    path = Path(word)
    if word in FIXED_RECIPES or word in USER_RECIPES:
        if path.exists() and "data.manifest" not in options.fields:
            print(f"{word}: taken for the recipe; for the folder of that name give ./{word}")
        return None
    looks_like_a_path = (
        path.exists() or "/" in word or path.suffix in (".csv", ".jsonl", ".parquet")
    )
    is_nearly_a_recipe = nearest(word, [*FIXED_RECIPES, *USER_RECIPES])
    return path if looks_like_a_path or not is_nearly_a_recipe else None


def _use_videos(options: argparse.Namespace, videos: Path) -> None:
    """Index them, and choose the recipe that is for them.

    Several processes find an index and a folder that one of them cannot make for the others.
    """
    if is_one_of_several() and options.folder is None:
        raise ValueError("--folder: several processes need one given; add --folder RUN")
    if "data.manifest" in options.fields:
        raise ValueError(f"{videos} and --data: both name the videos; leave one out")
    folder = manifest_of(videos, _chosen(options))
    manifest = Manifest.read(folder)
    manifest.check_classes()
    manifest.split("val")  # of those to train on the recipe will ask
    options.fields = {**options.fields, "data.manifest": str(folder)}
    options.recipe = "finetune" if options.fields.get("model.weights") else "scratch"


def _chosen(options: argparse.Namespace) -> Choices:
    """How a folder of videos is to be indexed."""
    return Choices(options.flip, options.val_share, options.group_pattern)


def _check_before_index(options: argparse.Namespace) -> None:
    """Raise ValueError for names and schedules that are none, on whatever videos."""
    multigrid = Multigrid.named(options.schedule or "anneal")
    model = Model(options.fields.get("model.name") or Model.name)
    check_weights_file(replace(model, weights=options.fields.get("model.weights")))
    fields = {
        name: value
        for name, value in options.fields.items()
        if name.startswith(("model.", "multigrid."))
    }
    changed(replace(recipe("scratch"), multigrid=multigrid), fields)


def _resumed(folder: Path, options: argparse.Namespace) -> ChosenRun:
    """A run that is gone on with, with fields of its configuration changed."""
    if options.recipe is not None or options.config is not None or options.folder is not None:
        flag = "--config" if options.config is not None else "--folder"
        other = options.recipe or flag
        raise ValueError(f"--resume {folder}: it names the run; leave out {other}")
    given = [each.partition(" ")[0] for each in options.given]
    surplus = [flag for flag in given if flag in PLAN_FLAGS]
    for flag in [*surplus, *(["--time"] if options.time is not None else [])]:
        raise ValueError(f"--resume {folder}: it goes on with its own plan; leave out {flag}")
    if not (folder / "config.yaml").is_file():
        problem = "no config.yaml in it" if folder.exists() else "not found"
        raise ValueError(f"--resume {folder}: {problem}; give a folder of vcycle train")
    file = folder / "config.yaml"
    config = _absolute(changed(read_config(file), options.fields))
    check_own_code(config, options.fields, file)
    with starting_pytorch():
        from vcycle.train.same_run import check_config

    check_config(read_values(file), config, source=f"--resume {folder}")  # before a plan is shown
    return ChosenRun(folder, config, resume=True)


def _in_own_precision(config: RunConfig, options: argparse.Namespace) -> RunConfig:
    """That of the run in the folder given, if there is one; else this machine's fastest."""
    begun = Path(options.folder or "") / "config.yaml"
    if options.folder is not None and begun.is_file():
        return replace(config, precision=read_config(begun).precision)
    return in_fastest_precision(config, is_timed=options.time is not None)


def _absolute(config: RunConfig) -> RunConfig:
    """Paths as they are from any working directory."""

    def whole(path: str) -> str:
        is_whole = "://" in path or path.startswith("~")
        return path if is_whole else str(Path(path).absolute())

    data, model = config.data, config.model
    if data.cache_folder:
        data = replace(data, cache_folder=whole(data.cache_folder))
    if data.manifest:
        data = replace(data, manifest=whole(data.manifest))
    if model.weights:
        model = replace(model, weights=whole(model.weights))
    return replace(config, data=data, model=model)


def _train(run: ChosenRun, options: argparse.Namespace) -> None:
    """Print the plan, train, and say where things are and what comes next."""
    config, folder = run.config, run.folder
    is_own = config.recipe in USER_RECIPES
    needs_time = run.budget_seconds is not None

    def plan_of(config: RunConfig) -> str:
        return f"\n{plan_text(PlanReport(config, options.given))}\n"

    if (is_own or options.dry_run) and is_first():
        if needs_time:
            print(f"\nthe plan is {options.time} long: it comes once its steps are timed")
        else:
            print(plan_of(config))
        print(f"run folder {folder}", flush=True)

    with starting_pytorch():
        from vcycle.devices.process_group import destroy_process_group
        from vcycle.devices.processes import Stopped
        from vcycle.train.run import train

    try:
        result = train(
            config,
            folder,
            resume=run.resume,
            title=folder.name if is_own else None,
            budget_seconds=run.budget_seconds,
            dry_run=options.dry_run,
            describe=plan_of if needs_time else None,
            exits=True,
        )
    except KeyboardInterrupt as stop:
        if isinstance(stop, Stopped) and not is_first_here():  # which says it
            raise SystemExit(130) from None
        said = _after_stop(folder, stop, config, num_gpus=options.gpus)
        raise KeyboardInterrupt(said) from None
    destroy_process_group()
    if not is_first():
        return
    if options.dry_run:
        print(f"stopped before the first step, as asked; nothing was written to {folder}")
        for flag in _chosen(options).given:
            print(f"{flag} is kept in the index of {config.data.manifest}")
    elif is_own:
        _say_end(folder, result, config)


def _after_stop(
    folder: Path, stop: KeyboardInterrupt, config: RunConfig, *, num_gpus: int | None
) -> str:
    """What was kept, and the command to go on in as many processes."""
    said = str(stop) or "interrupted"
    if not (folder / "checkpoint.pt").is_file():
        return f"{said}; there is no checkpoint yet: the same command begins anew"
    command = f"vcycle train --resume {shlex.quote(str(folder))}{_own_model(config)}"
    how = "go on with"
    if is_by_gpus(num_gpus):
        command += f" --gpus {num_gpus}"
    elif is_one_of_several():
        how = "the same torchrun or srun goes on with"
    return f"{said}; all is kept in {folder}; {how}:\n  {command}"


def _own_model(config: RunConfig) -> str:
    """The flag without which no function that a run folder names is called."""
    name = config.model.name
    return f" --model {shlex.quote(name)}" if ":" in name else ""


def _say_end(folder: Path, result: dict[str, Any], config: RunConfig) -> None:
    """The result, where things lie, and the next command."""
    print(f"\n{_scores(result)} on {counted(result['videos'], 'validation video')}")
    if misses_rare_classes(result):
        print(f"mean class accuracy {result[BY_CLASS]:.1%}: rare classes are missed more often")
    if "final" in result:
        print(f"{_scores(result['final'])} by {result['final']['protocol']}")
    if result["bad_videos"]:
        bad = counted(result["bad_videos"], "video")
        print(f"{bad} could not be read: {folder / 'bad_videos.json'}")
    print(f"all is in {folder}, the best weights in {folder / 'best.safetensors'}")
    print("next, more clips and crops of each video:")
    command = f"vcycle eval {shlex.quote(str(folder))}{_own_model(config)} --best"
    if not config.data.segments:  # of which there is one clip a video
        command += " --evaluation.num_clips 10"
    print(f"  {command} \\\n    --evaluation.num_crops 3", flush=True)


def _scores(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {values[key]:.1%}" for key in ("top1", "map") if key in values)
