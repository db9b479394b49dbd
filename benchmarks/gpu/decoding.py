"""Clips a second that reach the GPU: decoded by its own decoder (NVDEC), or by the CPU's processes.

    python benchmarks/gpu/decoding.py VIDEOS > decoding.jsonl

In: a folder of videos. Out: a JSON line for each decoder, raw and prepared videos, shape and number
of workers (threads that feed NVDEC, or processes that decode): the clips a second that the loader
hands over on the device, the faster of two passes; and how far the pixels of some are from PyAV's.
The folder is gone through again and again, so files come from memory. Videos that NVDEC leaves to
PyAV, such as those of a varying frame rate, count as its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from vcycle.bench.loader import PAPER_RANGE, bench_batches
from vcycle.bench.videos import prepare_intact
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.torchcodec import check_decoder
from vcycle.data.loader import Loader
from vcycle.data.manifest import Manifest
from vcycle.data.request import ClipRequest
from vcycle.schedule.shape import Shape

_COMPARED_CLIPS = 8

Decoder: TypeAlias = Literal["pyav", "torchcodec", "nvdec"]


def rows(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each decoder, kind of video, shape and number of workers."""
    raw, prepared = prepare_intact(
        options.videos,
        folder,
        keeps_reasons=False,
        remark=partial(print, file=sys.stderr),
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for source, manifest in (("raw", raw), ("prepared", prepared)):
        for shape in map(Shape.parse, options.shapes):
            for decoder in options.decoders:
                check_decoder(decoder, device if decoder == "nvdec" else torch.device("cpu"))
                of_row = {
                    "decoder": decoder,
                    "source": source,
                    "shape": str(shape),
                    "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
                    "cores": len(os.sched_getaffinity(0)),
                    "difference": _difference(manifest, decoder, shape),
                }
                for workers in options.workers:
                    speed = _clips_per_second(manifest, decoder, shape, workers, device, options)
                    yield {**of_row, "workers": workers, "clips_per_second": speed}


def _clips_per_second(
    manifest: Manifest,
    decoder: Decoder,
    shape: Shape,
    workers: int,
    device: torch.device,
    options: argparse.Namespace,
) -> float:
    batches = bench_batches(manifest, shape, num_clips=options.clips, batch_size=options.batch_size)
    loader = Loader(
        ClipDataset(manifest, PAPER_RANGE, decoder=decoder),
        batches,
        num_workers=workers,
        largest_batch_bytes=3 * shape.num_pixels * options.batch_size,
        device=device,
    )
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        for _ in loader:
            pass
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    if loader.bad_videos:
        raise ValueError(f"videos that {decoder} could not read: {loader.bad_videos}")
    loader.close()
    return sum(map(len, batches)) / min(seconds[1:])  # the first starts the workers


def _difference(manifest: Manifest, decoder: Decoder, shape: Shape) -> dict[str, float]:
    """Mean and greatest difference of a pixel, of 255, from PyAV's."""
    dataset, by_pyav = (
        ClipDataset(manifest, PAPER_RANGE, decoder=decoder),
        ClipDataset(manifest, PAPER_RANGE),
    )
    differences = []
    for index in range(_COMPARED_CLIPS):
        request = ClipRequest(index % len(manifest), shape, index)
        pixels, reference = (each[request].pixels.float().cpu() for each in (dataset, by_pyav))
        differences.append((pixels - reference).abs())
    every = torch.stack(differences)
    return {"mean": float(every.mean()), "greatest": float(every.max())}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("videos", type=Path)
    parser.add_argument("--decoders", nargs="+", default=["pyav", "nvdec"])
    parser.add_argument("--shapes", nargs="+", default=["8x112x112", "16x158x158", "32x224x224"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--clips", type=int, default=256, help="of each pass")
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vcycle-decoding-") as folder:
        for row in rows(options, Path(folder)):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
