"""Clips that only the order and the speed of frames tell apart, made of real ones."""

import sys
from pathlib import Path

import av
import numpy as np
import pytest

from encode_playback import main
from vcycle.data.decode.encode import encode_frames

GREYS = [40, 80, 120, 160, 200]


def encode(monkeypatch: pytest.MonkeyPatch, videos: Path, out: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["encode_playback.py", str(videos), str(out)])
    main()


def test_each_video_is_played_in_three_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "videos" / "train" / "run").mkdir(parents=True)
    frames = [np.full((32, 32, 3), grey, np.uint8) for grey in GREYS]
    video = tmp_path / "videos" / "train" / "run" / "ann_run.mp4"
    encode_frames(video, frames, frame_rate=25, key_interval=1, quality=18)
    for _ in range(2):  # the second time everything is there
        encode(monkeypatch, tmp_path / "videos", tmp_path / "out")
    found = {}
    for path in (tmp_path / "out").rglob("*.*"):
        with av.open(str(path)) as container:
            greys = [frame.to_ndarray(format="gray").mean() for frame in container.decode(video=0)]
            assert container.streams.video[0].average_rate == 25
        found[path.relative_to(tmp_path / "out").as_posix()] = greys
    expected = {"forwards": GREYS, "backwards": GREYS[::-1], "fast": GREYS[::2]}
    assert found.keys() == {f"{name}/ann_run.mp4" for name in expected}
    for name, greys in expected.items():
        assert found[f"{name}/ann_run.mp4"] == pytest.approx(greys, abs=4)


def test_videos_of_one_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("train", "val"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "run.mp4").touch()
    with pytest.raises(SystemExit) as error:
        encode(monkeypatch, tmp_path, tmp_path / "out")
    assert error.value.code == 2
    assert "two videos of one name" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_without_videos_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        encode(monkeypatch, tmp_path, tmp_path / "out")
    assert error.value.code == 2
    assert "no videos *.avi or *.mp4" in capsys.readouterr().err
