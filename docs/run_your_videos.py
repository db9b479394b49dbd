"""Run the commands of docs/your_videos.md on some videos, and keep what they print.

    python docs/run_your_videos.py && python docs/update.py
    python docs/run_your_videos.py --videos FOLDER --about "412 clips of eight words" --time 3m

Writes ``docs/results/your_videos.json``, from which ``docs/update.py`` fills the page. A folder of
real clips is copied; all is done in a temporary folder, whose path is replaced in the output.
"""

from __future__ import annotations

import argparse
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
GENERATED = "39 generated videos of three classes, of which two tell left from right"
STANDS_FOR = "/home/you"
_PROGRESS = re.compile(r"\S+: step |.* \(\d+ s\)$|\.\.\.$")


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


def commands(videos: Path, length: str) -> dict[str, str]:
    """The page's commands, on a folder of videos and the first of them to validate or to train."""
    name = videos.name
    one = min(videos.rglob("*.mp4"), key=lambda file: ("val" not in file.parts, file))
    shown = shlex.quote(str(one.relative_to(videos.parent)))
    return {
        "first_run": f"vcycle train {name} --model resnet3d_tiny --shape 8x96x96 {length}",
        "eval": f"vcycle eval runs/{name}-1 --best --evaluation.num_clips 3",
        "predict": f"vcycle predict runs/{name}-1 {shown} --top-k 2",
    }


def main(arguments: list[str]) -> int:
    """Run and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--videos", type=Path, help="a folder for each class; generated if not given"
    )
    parser.add_argument("--about", help="what they are, for the page")
    parser.add_argument("--time", default="1m", help="for training")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary).resolve()
        videos = folder / (options.videos.name if options.videos else "strokes")
        if options.videos:
            shutil.copytree(options.videos, videos, copy_function=shutil.copyfile)
            for each in (videos, *videos.rglob("*/")):
                each.chmod(0o755)
        else:
            write_strokes(folder)
        found = {
            mark: {"command": command, "output": printed(command, folder)}
            for mark, command in commands(videos, f"--time {options.time}").items()
        }
    about = options.about or (str(options.videos) if options.videos else GENERATED)
    RESULT.write_text(json.dumps({"about": about, "runs": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
