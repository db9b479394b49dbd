"""Which run folder a command means, and whether the run in it is the one that it asks for.

In: a configuration, its numbered folders under ``runs``, and what earlier runs left there. Out: the
folder of a new run, or that of the run to go on with, and the plan that it began with.
"""

from __future__ import annotations

import argparse
import glob
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vcycle.cli.launched import is_first
from vcycle.cli.waiting import starting_pytorch
from vcycle.config.fields import read_config, read_values
from vcycle.config.run import RunConfig
from vcycle.evaluate.run_manifest import has_other_videos, is_of_another_folder
from vcycle.schedule.multigrid import Multigrid

if TYPE_CHECKING:
    from vcycle.train.lock import FolderLock


@dataclass(frozen=True)
class ChosenRun:
    """What a command trains, and where.

    Args:
        folder: of the run.
        config: of the run; with the plan that it began with, if that was fitted to as much time.
        resume: as ``train`` takes it.
        budget_seconds: to which its plan is yet to be fitted.
    """

    folder: Path
    config: RunConfig
    resume: bool | Literal["auto"]
    budget_seconds: float | None = None


def choose_run(
    options: argparse.Namespace, config: RunConfig, name: str, seconds: float | None
) -> ChosenRun:
    """The run that a command begins or goes on with.

    The same command as before goes on with its run: in the folder given, or in the last numbered
    one if its run is not complete.
    """
    if options.folder is not None:
        return _in_given_folder(options, config, seconds)
    last = last_run_folder(name)
    if last is not None and (last / "config.yaml").is_file():
        try:
            fitted = _fitted(last, config, seconds)
            if (seconds is None or fitted is not None) and not _differs(last, fitted or config):
                return _going_on(last, config, fitted)
        except ValueError as error:  # of another version, or damaged
            said = f"{last} is not complete, and cannot be gone on with ({error})"
        else:
            said = (
                f"{last} is not complete, and began with other settings or videos; "
                f"--resume {shlex.quote(str(last))} goes on with it"
            )
        if is_first():
            print(said)
    if options.resume is True:
        raise ValueError("--resume: there is no run to go on with; give --resume RUN")
    return ChosenRun(run_folder(name), config, options.resume, seconds)


def _in_given_folder(
    options: argparse.Namespace, config: RunConfig, seconds: float | None
) -> ChosenRun:
    """The run in ``--folder``, new or begun. Raises ValueError if that is another one."""
    folder = Path(options.folder)
    has_begun = (folder / "config.yaml").is_file()
    fitted = _fitted(folder, config, seconds)
    if seconds is not None and fitted is None and has_begun:
        raise ValueError(
            f"--time {options.time}: the run in {folder} began with another length; give its "
            f"own, or another --folder"
        )
    if _has_other_videos(folder, config):
        raise ValueError(
            f"--folder {folder}: its run began with other videos; --resume "
            f"{shlex.quote(str(folder))} goes on with those, or give another --folder"
        )
    if has_begun:
        return _going_on(folder, config, fitted, resume=options.resume or "auto")
    return ChosenRun(folder, config, options.resume, seconds)


def _going_on(
    folder: Path,
    config: RunConfig,
    fitted: RunConfig | None,
    *,
    resume: bool | Literal["auto"] = "auto",
) -> ChosenRun:
    """The run in a folder, with the plan that it was fitted to before."""
    if fitted is not None and is_first():
        print(f"{folder}: keeps the plan that it began with")
    return ChosenRun(folder, fitted or config, resume)


def _fitted(folder: Path, config: RunConfig, seconds: float | None) -> RunConfig | None:
    """The configuration with the plan that an earlier run was fitted to for as many seconds."""
    file = folder / "config.yaml"
    if seconds is None or not file.is_file():
        return None
    before = read_config(file)
    if before.fitted_seconds != round(seconds):
        return None
    return replace(
        config,
        baseline=replace(
            config.baseline,
            steps=before.baseline.steps,
            stage_ends=before.baseline.stage_ends,
            learning_rate=replace(
                config.baseline.learning_rate,
                warmup_steps=before.baseline.learning_rate.warmup_steps,
            ),
        ),
        multigrid=_fitted_schedule(config, before),
        evaluation=replace(config.evaluation, times=before.evaluation.times),
        notes=before.notes,
        schedule_notes=before.schedule_notes,
        steps_note=before.steps_note,
        fitted_seconds=before.fitted_seconds,
    )


def _fitted_schedule(config: RunConfig, before: RunConfig) -> Multigrid:
    """The steps that an earlier run was fitted to, without a schedule if too few fitted."""
    multigrid = config.multigrid
    both_chosen = config.has_chosen_schedule and before.has_chosen_schedule
    if both_chosen and before.multigrid.anneal is None:
        multigrid = multigrid.with_schedule("off")
    return replace(multigrid, steps=before.multigrid.steps)


def _differs(folder: Path, config: RunConfig) -> bool:
    """Whether the run in a folder is another one, by its settings or its videos."""
    with starting_pytorch():
        from vcycle.train.same_run import config_differences

    before = read_values(folder / "config.yaml")
    return bool(config_differences(before, config)) or _has_other_videos(folder, config)


def _has_other_videos(folder: Path, config: RunConfig) -> bool:
    """Than those that the run in a folder began with; a folder that was moved has the same."""
    place = config.data.given_manifest()
    return has_other_videos(folder, place) or is_of_another_folder(folder, place)


def run_folder(name: str) -> Path:
    """The folder after the last of runs/NAME-1, NAME-2, ... that a run has begun to fill."""
    return Path("runs", f"{name}-{_last_number(name) + 1}")


def locked_folder(name: str) -> tuple[Path, FolderLock]:
    """The first folder after those that nobody else is about to fill; locked, until it is released.

    A lock that is released in a folder without anything else removes that.
    """
    from vcycle.train.lock import FolderLock

    number = _last_number(name)
    while True:
        number += 1
        folder = Path("runs", f"{name}-{number}")
        lock = FolderLock(folder)
        try:
            lock.take()
        except ValueError:  # in use
            continue
        if not _has_begun(folder):
            return folder, lock
        lock.release()


def last_run_folder(name: str) -> Path | None:
    """The last of those folders that a run has begun to fill, if it is not complete."""
    last = Path("runs", f"{name}-{_last_number(name)}")
    return last if last.is_dir() and not (last / "result.json").exists() else None


def _last_number(name: str) -> int:
    """Of those folders; 0 if there is none."""
    folders = filter(_has_begun, Path("runs").glob(f"{glob.escape(name)}-*"))
    numbers = (each.name.removeprefix(f"{name}-") for each in folders)
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _has_begun(folder: Path) -> bool:
    return any(file.name != ".lock" for file in folder.glob("*"))
