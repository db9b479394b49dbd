"""Writing checkpoints: what a run needs to go on, and what others need to use its model.

    checkpoints/step_00000500.pt           model, optimizer, step, and what the run is
    checkpoints/step_00000500.safetensors  what is validated, with the TrainedModel as metadata
    checkpoint.pt, checkpoint.safetensors  further names of the newest
    best.pt, best.safetensors              further names of that with the best validation

A file appears under its name once it has been read back from the disk and is what was written; only
then are older ones removed. Random state is in none: every draw of a run is indexed by its step.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vcycle.data.atomic import atomic, remove_partials
from vcycle.evaluate.checkpoint import (
    check_intact,
    check_loads,
    read_trained_model,
    weights_bytes,
    weights_of,
)
from vcycle.evaluate.run_manifest import CHECKPOINTS

_SUFFIXES = (".safetensors", ".pt")
_STEP = "step_" + "[0-9]" * 8  # the name of a checkpoint, as a pattern


def write_checkpoint(folder: Path, state: dict[str, Any], *, keep: int) -> Path:
    """Write the state after ``state["next_step"]`` steps into a run folder; returns its stem.

    Of the older ones in ``checkpoints/`` the last ``keep`` - 1 stay. Raises OSError, with nothing
    removed, if the disk is full or does not give back what was written.
    """
    stem = folder / CHECKPOINTS / f"step_{state['next_step']:08d}"
    stem.parent.mkdir(exist_ok=True)
    weights = weights_bytes(weights_of(state), state["trained"])

    def check_weights(file: Path) -> None:
        if file.read_bytes() != weights:
            raise ValueError

    # The checkpoint comes last: with it the pair is complete.
    _write(stem.with_suffix(".safetensors"), lambda file: file.write_bytes(weights), check_weights)
    _write(stem.with_suffix(".pt"), lambda file: torch.save(state, file), check_intact)
    link(stem, folder / "checkpoint")
    for old in _stems(folder)[:-keep]:
        _remove(old)
    return stem


def has_checkpoint(folder: Path) -> bool:
    """Whether a run folder holds a checkpoint to go on from, intact or not."""
    names = ("checkpoint.pt", "best.pt")
    return any((folder / name).is_file() for name in names) or bool(_stems(folder))


def newest_intact(folder: Path, *, say: Callable[[str], None]) -> Path:
    """The checkpoint after most steps of those that are intact and can be loaded.

    ``say`` is told of those that cannot. Raises ValueError if there is none.
    """
    steps = _steps(folder)
    found = sorted(steps, key=lambda path: steps[path], reverse=True)
    for number, path in enumerate(found, 1):
        try:
            check_intact(path)
            check_loads(path)
            return path
        except ValueError as error:
            if number == len(found):
                raise
            say(f"{error}; trying the one before")
    raise ValueError(f"run folder {folder}: it has no checkpoint; start anew in another folder")


def _steps(folder: Path) -> dict[Path, int]:
    """Every checkpoint, by one of its names, and the steps that it has had.

    A file without a number says itself how many; if it cannot, it counts as the last, so that it is
    tried and heard of.
    """
    stems = [stem.with_suffix(".pt") for stem in _stems(folder)]
    steps = {path: int(path.stem.removeprefix("step_")) for path in stems}
    for name in ("checkpoint.pt", "best.pt"):
        path = folder / name
        if path.is_file() and not any(path.samefile(other) for other in steps):
            try:
                steps[path] = check_loads(path)
            except ValueError:
                steps[path] = sys.maxsize
    return steps


def best_steps(folder: Path) -> int:
    """The steps of ``best.safetensors``; 0 without one, or with a damaged one."""
    file = folder / "best.safetensors"
    try:
        file.stat()
        return read_trained_model(file).steps
    except (FileNotFoundError, ValueError):  # other errors of the disk say nothing of the file
        return 0


def clear_after(folder: Path, *, next_step: int, resumed: Path | None) -> None:
    """Remove what is in the way of a run that goes on from ``next_step``.

    Those are checkpoints after more steps than ``resumed``, from which it does, damaged or not, and
    what a killed run left half done.
    """
    if resumed is not None and resumed.name != "checkpoint.pt":
        link(resumed.with_suffix(""), folder / "checkpoint")
    names = [f"{name}{suffix}" for name in ("checkpoint", "best") for suffix in _SUFFIXES]
    remove_partials(folder, names)
    for partial in (folder / CHECKPOINTS).glob(f".{_STEP}*"):
        partial.unlink(missing_ok=True)
    for weights in (folder / CHECKPOINTS).glob(f"{_STEP}*.safetensors"):
        if not weights.with_suffix(".pt").exists():
            weights.unlink()
    if best_steps(folder) > next_step:
        _remove(folder / "best")
    for path, steps in _steps(folder).items():
        if next_step < steps < sys.maxsize:
            _remove(path.with_suffix(""))


def link(stem: Path, name: Path) -> None:
    """Give both files of a checkpoint a further name, the checkpoint last."""
    for suffix in _SUFFIXES:
        with atomic(name.with_suffix(suffix)) as partial:
            try:
                os.link(stem.with_suffix(suffix), partial)
            except OSError:  # of a disk without hard links
                shutil.copyfile(stem.with_suffix(suffix), partial)


def _stems(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first, without suffix."""
    files = (folder / CHECKPOINTS).glob(f"{_STEP}*.pt")
    return sorted(file.with_suffix("") for file in files)


def _remove(stem: Path) -> None:
    for suffix in reversed(_SUFFIXES):
        stem.with_suffix(suffix).unlink(missing_ok=True)


def _write(path: Path, write: Callable[[Path], object], check: Callable[[Path], None]) -> None:
    """Write a file and read it back from the disk before it appears under its name."""
    with atomic(path) as partial:
        try:
            write(partial)
            _forget_cached(partial)
            check(partial)
        except RuntimeError as error:
            # That of torch's writer names a place in its file, not what the disk lacks.
            reason = "could not be written; make room on the disk"
            raise OSError(errno.EIO, reason, str(path)) from error
        except ValueError as error:
            reason = "the disk does not give back what was written; make room, or use another"
            raise OSError(errno.EIO, reason, str(path)) from error


def _forget_cached(path: Path) -> None:
    """Have a file written to the disk, and read from there."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
