"""Run the commands of docs/your_videos.md on generated videos, and keep what they print.

    python docs/run_your_videos.py && python docs/update.py

Writes ``docs/results/your_videos.json``, from which ``docs/update.py`` fills the page. The folder
is a temporary one; its path is replaced in the output. Takes a minute or two on two cores.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from vcycle.demo.videos import write_videos

RESULT = Path(__file__).parent / "results" / "your_videos.json"
CLASSES = ("left_loop", "right_loop", "serve")
COMMANDS = {
    "first_run": "vcycle train strokes --model resnet3d_tiny --shape 8x64x64 --epochs 120",
    "eval": "vcycle eval runs/strokes-1 --best --evaluation.num_clips 3",
    "predict": "vcycle predict runs/strokes-1 strokes/left_loop/left_loop_00.mp4 --top-k 2",
}
STANDS_FOR = "/home/you"
ABOUT = "39 generated videos of three classes, of which two tell left from right"
_PROGRESS = re.compile(r"\S+: (?:phase|step) (?!.*trained)|.* \(\d+ s\)$")


def write_strokes(folder: Path) -> None:
    """Short videos in a folder for each class, of which two tell left from right."""
    manifest = write_videos(folder / "generated", train_videos=144, val_videos=12, seed=0)
    counts = dict.fromkeys(CLASSES, 0)
    for video in manifest.videos:
        if video.labels[0] < len(CLASSES):
            name = CLASSES[video.labels[0]]
            file = folder / "strokes" / name / f"{name}_{counts[name]:02}.mp4"
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(manifest.root / video.path, file)
            counts[name] += 1


def printed(command: str, folder: Path) -> str:
    """What a command prints in 80 columns; it must succeed."""
    _, *words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", "vcycle", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return shortened(done.stdout.replace(str(folder), STANDS_FOR))


def shortened(text: str) -> str:
    """Without all but the first and the last of the lines of progress that follow each other."""
    lines: list[str] = []
    source = text.strip().splitlines()
    for number, line in enumerate(source):
        around = source[max(0, number - 1) : number + 2]
        if len(around) == 3 and all(_PROGRESS.match(each) for each in around):
            if lines[-1] != "...":
                lines.append("...")
        else:
            lines.append(line)
    return "\n".join(lines)


def main() -> int:
    """Run and keep."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write_strokes(folder)
        found = {
            mark: {"command": command, "output": printed(command, folder)}
            for mark, command in COMMANDS.items()
        }
    RESULT.write_text(json.dumps({"about": ABOUT, "runs": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
