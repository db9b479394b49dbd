"""The loader benchmark: every source at every shape, from a folder of videos."""

from __future__ import annotations

import pytest

from tests.encode import encode, numbered_frames
from vcycle.bench import loader
from vcycle.bench.loader import bench_loader
from vcycle.cli.main import main
from vcycle.data.decode.encode import encode_frames

SMALL = {"shapes": ("4x32",), "num_clips": 4}


def test_every_source_at_every_shape(tmp_path):
    for k in range(2):
        encode(tmp_path / f"{k}.mp4", numbered_frames(40, 64, 96))
    (tmp_path / "text.mp4").write_text("no video")
    seen, remarks = [], []
    rows = bench_loader(
        tmp_path,
        shapes=("4x32", "8x48"),
        num_clips=4,
        peers=False,
        progress=seen.append,
        remark=remarks.append,
    )
    assert seen == rows
    assert remarks == ["1 of 3 videos left out: they do not decode to the end"]
    sources = ["prepared", "floor_prepared", "raw", "floor"]
    assert [(row.shape, row.source) for row in rows] == [
        (shape, source) for shape in ("4x32", "8x48") for source in sources
    ]
    assert all(row.clips_per_second > 0 and row.cpu_ms_per_clip > 0 for row in rows)


def test_a_folder_without_videos_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no readable video"):
        bench_loader(tmp_path)
    with pytest.raises(ValueError, match="no such folder"):
        bench_loader(tmp_path / "nowhere")
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(ValueError, match="holds no readable video"):
        bench_loader(tmp_path)


def damaged(path):
    """A video that can be probed, and does not decode from its middle on."""
    encode_frames(path, numbered_frames(60), frame_rate=10, key_interval=5, quality=20)
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    content[half:] = bytes(len(content) - half)
    path.write_bytes(content)


def test_only_videos_that_decode_to_the_end_are_measured(tmp_path):
    damaged(tmp_path / "half.mp4")
    with pytest.raises(ValueError, match=f"^{tmp_path}: no video in it decodes to the end"):
        bench_loader(tmp_path, **SMALL, peers=False)
    (tmp_path / "class" / "deep").mkdir(parents=True)
    encode(tmp_path / "class" / "deep" / "intact.mp4", numbered_frames(40, 64, 96))
    remarks = []
    for _ in range(2):  # the second time the prepared videos are there, and are no raw ones
        rows = bench_loader(
            tmp_path,
            **SMALL,
            prepared_dir=tmp_path / "fast",
            peers=False,
            remark=remarks.append,
        )
        assert len(rows) == 4
    assert remarks == 2 * ["1 of 2 videos left out: they do not decode to the end"]


def test_a_peer_that_fails_is_left_out(tmp_path, monkeypatch):
    encode(tmp_path / "v.mp4", numbered_frames(40, 64, 96))

    def fail(path, info, grid):
        raise RuntimeError("no\nsuch codec")

    monkeypatch.setattr(loader, "PEERS", {"decord": fail})
    monkeypatch.setattr(loader, "is_usable", lambda name: True)
    remarks = []
    rows = bench_loader(tmp_path, **SMALL, remark=remarks.append)
    assert [row.source for row in rows] == ["prepared", "floor_prepared", "raw", "floor"]
    assert remarks == ["decord fails at 4x32: no such codec"]


@pytest.mark.parametrize("number", ["0", "-3"])
def test_a_number_of_clips_that_is_none(tmp_path, capfd, number):
    assert main(["bench", "loader", str(tmp_path), "--num-clips", number]) == 2
    assert f"vcycle: num_clips {number}: give at least 1\n" == capfd.readouterr().err
