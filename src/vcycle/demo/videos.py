"""The demo's videos: scenes written as real H.264 files with a manifest.

A directory and counts go in; a ``Manifest`` comes out. The same arguments write the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from vcycle.data.atomic import write_atomic
from vcycle.data.decode.encode import encode_frames
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video
from vcycle.data.tables import parse_object
from vcycle.datasets.parallel import Failed, run_jobs
from vcycle.demo.scenes import CLASSES, SPLITS, draw_scene, render

_SETTINGS_FILE = "synthetic.json"
_FORMAT_VERSION = 2  # goes up if frames change: files of another version are refused


def write_videos(
    directory: str | Path,
    *,
    train_videos: int = 1200,
    val_videos: int = 240,
    seed: int = 0,
    num_workers: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Write the videos and their manifest under ``directory``; classes are balanced.

    ``progress(done, total)`` is called as files appear. A directory that these arguments filled
    before is left as it is. Raises ValueError if a count is below one, or the directory holds
    anything else, or if a video cannot be written.
    """
    root = Path(directory)
    for name, count in (("train_videos", train_videos), ("val_videos", val_videos)):
        if count < 1:
            raise ValueError(f"{name} {count}: give at least 1 video")
    if seed < 0:
        raise ValueError(f"seed {seed}: give a number of at least 0")
    settings = {
        "version": _FORMAT_VERSION,
        "seed": seed,
        "train_videos": train_videos,
        "val_videos": val_videos,
    }
    if _complete(root, settings):
        return Manifest.read(root)
    jobs = [("train", i) for i in range(train_videos)] + [("val", i) for i in range(val_videos)]
    for split in SPLITS:
        (root / split).mkdir(parents=True, exist_ok=True)
    videos: dict[tuple[str, int], Video] = {}
    write = partial(_write_video, root, seed)
    for job, video in run_jobs(write, jobs, num_workers=num_workers if num_workers > 1 else 0):
        if isinstance(video, Failed):
            raise ValueError(
                f"{root}/{job[0]}: video {job[1]} was not written ({video.reason}); "
                f"give the same command again"
            )
        videos[job] = video
        if progress is not None:
            progress(len(videos), len(jobs))
    manifest = Manifest(root, CLASSES, tuple(videos[job] for job in jobs))
    manifest.write()
    write_atomic(root / _SETTINGS_FILE, json.dumps({**settings, "complete": True}) + "\n")
    return manifest


def _complete(root: Path, settings: dict[str, int]) -> bool:
    """Whether ``root`` holds all videos of these settings; if not, note that they are begun.

    Raises ValueError if it holds anything else.
    """
    file = root / _SETTINGS_FILE
    if file.exists():
        found = parse_object(file, dict, fix="remove the folder, or choose another")
        if {**found, "complete": True} != {**settings, "complete": True}:
            raise ValueError(f"{root}: holds videos of other settings; choose another directory")
        if found.get("complete") is not True:
            return False
        _check_all_there(root)
        return True
    if root.exists() and any(root.iterdir()):
        raise ValueError(f"{root}: not empty; choose a new directory for the generated videos")
    root.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps({**settings, "complete": False}) + "\n")
    return False


def _check_all_there(root: Path) -> None:
    """Raise ValueError if the manifest or a video of it is gone."""
    names = ["manifest.csv"]
    if (root / names[0]).is_file():
        names = [video.path for video in Manifest.read(root).videos]
    gone = [name for name in names if not (root / name).is_file()]
    if gone:
        raise ValueError(f"{root}: {gone[0]} is gone; remove the folder to have all written again")


def _write_video(root: Path, seed: int, job: tuple[str, int]) -> Video:
    split, index = job
    label = index % len(CLASSES)
    scene = draw_scene(seed=seed, split=split, index=index)
    path = f"{split}/{index:05d}.mp4"
    encode_frames(
        root / path,
        render(scene, label),
        frame_rate=scene.frame_rate,
        key_interval=scene.frame_rate,
        quality=30,
    )
    return Video(
        path=path,
        labels=(label,),
        split=split,
        flip=True,  # nothing has a left and a right
        num_frames=scene.num_frames,
        frame_rate=float(scene.frame_rate),
        duration_seconds=scene.num_frames / scene.frame_rate,
        width=scene.width,
        height=scene.height,
        codec="h264",
        rotation=0,
        key_interval=min(scene.frame_rate, scene.num_frames),
    )
