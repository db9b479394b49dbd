"""What a clip costs with the decoded frames of its video kept in memory, and without.

    python benchmarks/kept_frames.py FOLDER ... > docs/results/kept_frames.json

In: folders of videos. Out: JSON, a row for each folder and shape of an anneal of 8x96x96: CPU
milliseconds of a clip that is read from its file, and of the same cut from kept frames, the least
of five passes over 300 clips on one thread; the bytes that are kept, and the seconds in which all
videos are decoded. Clips are equal, or the program ends.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from study_provenance import machine
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.kept import KeptFrames, decoded_bytes
from vcycle.data.decode.resample import keep_freed_memory
from vcycle.data.grid import GridRange
from vcycle.data.randomness import indexed_seeds
from vcycle.data.request import ClipRequest
from vcycle.datasets.index import index_videos
from vcycle.datasets.own_videos import list_folder
from vcycle.schedule.shape import Shape

_SHAPES = ("2x48x48", "4x68x68", "8x96x96")
_GRIDS = GridRange(Shape(8, 96, 96), stride=2, short_side=(100, 131))
_CLIPS = 300
_PASSES = 5


def main(folders: list[str]) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = [row for folder in folders for row in _rows(Path(folder))]
    print(json.dumps({"machine": machine(on_gpu=False), "rows": rows}, indent=1))


def _rows(folder: Path) -> list[dict[str, Any]]:
    videos = index_videos(list_folder(folder), Path("runs") / "kept_frames" / folder.name).manifest
    of_files = ClipDataset(videos, _GRIDS)
    kept = replace(of_files, kept=KeptFrames(2**40))
    began = time.process_time()
    for index in range(len(videos)):
        kept[ClipRequest(index, Shape.parse(_SHAPES[0]), seed=0)]
    decode_seconds = time.process_time() - began
    found = []
    for text in _SHAPES:
        seeds = indexed_seeds(0, "kept", np.arange(_CLIPS)).tolist()
        shape = Shape.parse(text)
        requests = [ClipRequest(k % len(videos), shape, seed) for k, seed in enumerate(seeds)]
        clips, read_ms = _timed(of_files, requests)
        same, kept_ms = _timed(kept, requests)
        if not all(map(torch.equal, clips, same)):
            sys.exit(f"{folder}: clips of {shape} differ")
        found.append({"shape": text, "read_ms": read_ms, "kept_ms": kept_ms})
    about = {
        "videos": len(videos),
        "frames": sum(video.num_frames for video in videos.videos),
        "bytes": decoded_bytes(videos.videos),
        "decode_seconds": decode_seconds,
    }
    return [{"dataset": folder.name, **about, **row} for row in found]


def _timed(dataset: ClipDataset, requests: list[ClipRequest]) -> tuple[list[Tensor], float]:
    """The clips, and CPU milliseconds for one, once each video has been read."""
    clips, best = [dataset[request].pixels for request in requests], math.inf
    for _ in range(_PASSES):
        began = time.process_time()
        for request in requests:
            dataset[request]
        best = min(best, time.process_time() - began)
    return clips, 1000 * best / len(requests)


if __name__ == "__main__":
    main(sys.argv[1:])
