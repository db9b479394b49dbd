"""The loader benchmark: every source at every shape, from a folder of videos."""

from __future__ import annotations

import pytest

from data.encode import encode, numbered_frames
from vcycle.bench.loader import bench_loader
from vcycle.data.prepare import Preparation


def test_every_source_at_every_shape(tmp_path):
    for k in range(2):
        encode(tmp_path / f"{k}.mp4", numbered_frames(40, 64, 96))
    (tmp_path / "text.mp4").write_text("no video")
    seen = []
    rows = bench_loader(
        tmp_path,
        shapes=("4x32", "8x48"),
        num_clips=4,
        preparation=Preparation(short_side=48),
        peers=False,
        progress=seen.append,
    )
    assert seen == rows
    sources = ["prepared", "floor_prepared", "raw", "floor"]
    assert [(row.shape, row.source) for row in rows] == [
        (shape, source) for shape in ("4x32", "8x48") for source in sources
    ]
    assert all(row.clips_per_second > 0 and row.cpu_ms_per_clip > 0 for row in rows)


def test_a_folder_without_videos_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no readable video"):
        bench_loader(tmp_path)
    with pytest.raises(ValueError, match="no such directory"):
        bench_loader(tmp_path / "nowhere")
