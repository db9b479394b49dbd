"""``vcycle predict``: what videos show, by a trained model.

In: a run folder or checkpoint, and videos. Out: the most probable classes of each, printed.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vcycle.cli.launched import is_one_of_several
from vcycle.cli.trained_model import add_model_flags, model_of
from vcycle.cli.waiting import starting_pytorch, waiting_for
from vcycle.config.flag_parser import FlagParser
from vcycle.data.atomic import naming
from vcycle.data.tables import without_control
from vcycle.schedule.messages import counted
from vcycle.schedule.shape import Shape

if TYPE_CHECKING:
    from vcycle.evaluate.predict import Prediction
    from vcycle.evaluate.video_arguments import NamedVideo


_MOST_NAMED = 10
"""Of the videos that could not be read, those that a message names."""


def add_predict_flags(parser: FlagParser) -> None:
    """Add the flags of ``vcycle predict``."""
    add_model_flags(parser)
    parser.add_argument(
        "videos",
        nargs="+",
        metavar="VIDEO",
        help="a file, a folder, a manifest.csv, a URI, or - for standard input",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--top-k", type=int, default=5, metavar="K", help="classes shown (default: 5)"
    )
    parser.add_argument(
        "--window", type=float, metavar="SECONDS", help="predict for windows of so many seconds"
    )
    parser.add_argument(
        "--every",
        type=float,
        metavar="SECONDS",
        help="from one window's start to the next's (default: the window)",
    )
    parser.add_argument(
        "--clips",
        type=int,
        metavar="K",
        help="clips of a video (default: 10) or window (default: 1)",
    )
    parser.add_argument("--shape", metavar="TxHxW", help="of a clip (default: as in training)")
    parser.set_defaults(run=run_predict_command)


def run_predict_command(options: argparse.Namespace) -> None:
    """Predict and print, video by video. Raises ValueError for what a user got wrong.

    A video that does not decode is reported once all others are done.
    """
    if is_one_of_several():
        raise ValueError("predict: it runs in one process; start it without torchrun")
    _check_numbers(options)
    shape = Shape.parse(options.shape) if options.shape else None

    with starting_pytorch():
        import torch

        from vcycle.data.metadata import UnreadableVideo
        from vcycle.evaluate.predict import predict

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with waiting_for(f"loading {options.model}"):
        model = model_of(options, device=device)
    rows: list[dict[str, Any]] = []
    bad: list[str] = []  # an error would hold what was fetched of its video
    with _found(options.videos) as videos:
        for video in videos:
            predictions = predict(
                model,
                video,
                window_seconds=options.window,
                every_seconds=options.every,
                num_clips=options.clips,
                shape=shape,
            )
            try:
                for prediction in predictions:
                    rows.append(prediction.to_dict(top_k=options.top_k))
                    if not options.json:
                        print(_text(prediction, options), flush=True)
            except UnreadableVideo as error:
                bad.append(str(error))
    if options.json:
        print(json.dumps({"model": str(model.path), "predictions": rows}, indent=1))
    if bad:
        each = "; ".join(bad[:_MOST_NAMED])
        if len(bad) > _MOST_NAMED:
            each += f"; and {len(bad) - _MOST_NAMED} more"
        raise ValueError(
            f"{counted(len(bad), 'video')} could not be read; leave out what is not there, and "
            f"encode again what is damaged: {each}"
        )


def _check_numbers(options: argparse.Namespace) -> None:
    """Raise ValueError, in the words of the command line, if a number is impossible."""
    for flag, count in (("--top-k", options.top_k), ("--clips", options.clips)):
        if count is not None and count < 1:
            raise ValueError(f"{flag} {count}: give at least 1")
    for flag, seconds in (("--window", options.window), ("--every", options.every)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"{flag} {seconds:g}: give a positive number of seconds")
    if options.every is not None and options.window is None:
        raise ValueError(f"--every {options.every:g}: give --window too")


def _text(prediction: Prediction, options: argparse.Namespace) -> str:
    span = ""
    if options.window is not None:
        span = f"  {prediction.start_seconds:.1f} to {prediction.end_seconds:.1f} s"
    lines = [f"{without_control(prediction.video)}{span}"]
    lines += [f"  {share:6.1%}  {name}" for name, share in prediction.top(options.top_k)]
    return "\n".join(lines)


@contextmanager
def _found(words: list[str]) -> Iterator[list[NamedVideo]]:
    """The videos that words name; ``-`` is one of the bytes of standard input."""
    from vcycle.evaluate.video_arguments import find_videos

    if "-" not in words:
        yield find_videos(words)
        return
    if sys.stdin is None:
        raise ValueError("-: standard input is closed; pipe a video into it, or name a file")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "standard_input"
        with naming(file), file.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
        [piped] = find_videos([file])
        yield [
            video
            for word in words
            for video in ([replace(piped, name="-")] if word == "-" else find_videos([word]))
        ]
