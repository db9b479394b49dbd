"""The command line: the parser of all commands, their errors and exit codes.

Each command reads its arguments, calls one function, and prints. What a user got wrong is one line
on standard error and exit code 2; an interrupted command is exit code 130; one whose output nobody
reads any more does its work and exits as otherwise. Commands import what they need when they run:
printing a plan must not wait for torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from vcycle.cli.bench import add_bench_flags
from vcycle.cli.compare import add_compare_flags
from vcycle.cli.data import add_data_flags
from vcycle.cli.demo import add_demo_flags
from vcycle.cli.doctor import add_doctor_flags
from vcycle.cli.eval import add_eval_flags
from vcycle.cli.export import add_export_flags
from vcycle.cli.launched import is_one_of_several
from vcycle.cli.models import add_models_flags
from vcycle.cli.output import lasting_output
from vcycle.cli.plan import add_plan_flags
from vcycle.cli.predict import add_predict_flags
from vcycle.cli.report import add_report_flags
from vcycle.cli.train import add_train_flags
from vcycle.config.flag_parser import FlagParser
from vcycle.config.flags import FIELDS_HELP
from vcycle.data.tables import without_control
from vcycle.schedule.messages import one_line

_OF_RUNS: dict[str, tuple[str, str | None, Callable[[FlagParser], None]]] = {
    "plan": ("print or draw what a run will do", "recipe", add_plan_flags),
    "train": ("train as a recipe says", "recipe", add_train_flags),
    "eval": ("score a run's checkpoint", None, add_eval_flags),
}
"""Command -> help, its one word, its flags; fields of the configuration are flags of these."""
_OTHERS: dict[str, tuple[str, Callable[[FlagParser], None]]] = {
    "report": ("write a report of runs as one HTML file", add_report_flags),
    "compare": ("say what runs took to reach an accuracy", add_compare_flags),
    "export": ("write a trained model for other programs", add_export_flags),
    "predict": ("say what videos show", add_predict_flags),
    "models": ("list the models and what they cost", add_models_flags),
    "demo": ("train on generated videos, with and without multigrid", add_demo_flags),
    "bench": ("measure on this machine and your videos", add_bench_flags),
    "doctor": ("what this machine has, and what to change", add_doctor_flags),
    "data": ("make, index and prepare videos", add_data_flags),
}

_LIMITS: dict[type[Exception] | tuple[type[Exception], ...], str] = {
    RecursionError: "a file or flag is nested too deeply; give one of vcycle's own",
    OverflowError: "a number is too large; give a smaller one",
    (MemoryError, RuntimeError): "memory is full; ask for less at once",  # the latter is torch's
}
"""What no field has a limit for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    with lasting_output() as check_output:
        try:
            words = list(map(_at_home, sys.argv[1:] if arguments is None else arguments))
            _check_no_word_is_empty(words)
            options = make_parser().parse_args(words)
            options.words = words
            options.run(options)
            if not hasattr(options, "is_logged"):  # of others, what they print is their result
                check_output()
            return 0
        except Exception as error:
            is_users = _is_users(error)
            message = without_control(_one_line(error) if is_users else one_line(error))
            is_told = is_users and not os.environ.get("VCYCLE_TRACEBACK")
            if is_told:
                print(f"vcycle: {message}", file=sys.stderr, flush=True)
            if is_one_of_several():
                _tell_others(message)
            if is_told:
                return 2
            raise
        except KeyboardInterrupt as stop:
            print(f"vcycle: {str(stop) or 'interrupted'}", file=sys.stderr)
            return 130


def _at_home(word: str) -> str:
    """A word with the home folder for ``~/``, which shells leave within quotes and after ``=``."""
    flag, sign, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return flag + sign + (str(Path(value).expanduser()) if value.startswith("~/") else value)


def _check_no_word_is_empty(words: Sequence[str]) -> None:
    """Raise ValueError for what ``"$NAME"`` leaves of a shell's variable that is not set.

    As a path it would be the folder that one stands in, and as weights none at all.
    """
    for before, word in pairwise(("vcycle", *words)):
        if not word or (word.startswith("--") and word.find("=") == len(word) - 1):
            what = word or before
            raise ValueError(f"{what}: an empty word after it; give a value, or leave it out")


def _tell_others(message: str) -> None:
    from vcycle.devices.process_group import leave_word

    leave_word(message)


def _is_users(error: Exception) -> bool:
    """Whether it is a user's to mend, or a limit of the machine, and no fault of the program."""
    if isinstance(error, ValueError | OSError | RecursionError | OverflowError | MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    from vcycle.models.out_of_memory import is_out_of_memory

    return is_out_of_memory(error)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = " ".join(str(error).split())
    for kind, limit in _LIMITS.items():
        if isinstance(error, kind):
            return f"{limit} ({text[:200]}; VCYCLE_TRACEBACK=1 shows where)"
    return text


def make_parser() -> FlagParser:
    """The parser of all commands; what it parses has a function ``run``.

    ``main`` adds the words themselves, as ``words``.
    """
    parser = FlagParser(
        prog="vcycle",
        description="Multigrid training for video models: coarse clips first, fine ones to finish.",
    )
    parser.add_argument("--version", action="version", version=f"vcycle {version('vcycle')}")
    commands = parser.add_subparsers(title="commands", required=True)
    for name, (text, word, add_flags) in _OF_RUNS.items():
        add_flags(commands.add_parser(name, help=text, word=word, epilog=FIELDS_HELP))
    for name, (text, add_flags) in _OTHERS.items():
        add_flags(commands.add_parser(name, help=text))
    parser.know_all_flags()
    return parser
