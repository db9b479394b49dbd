"""The generated videos: the same bytes for the same seed, balanced, and readable as real files."""

from __future__ import annotations

from dataclasses import fields

import av
import pytest

from vcycle.cli.main import main
from vcycle.data.decode.probe import probe
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import VideoInfo
from vcycle.datasets.parallel import Failed
from vcycle.demo.videos import write_videos


def test_the_same_seed_writes_the_same_bytes_on_any_number_of_workers(tmp_path):
    one = write_videos(tmp_path / "a", train_videos=18, val_videos=2, seed=3, num_workers=1)
    two = write_videos(tmp_path / "b", train_videos=18, val_videos=2, seed=3, num_workers=2)
    other = write_videos(tmp_path / "c", train_videos=18, val_videos=2, seed=4, num_workers=1)
    for video_a, video_b, video_c in zip(one.videos, two.videos, other.videos, strict=True):
        bytes_a = (one.root / video_a.path).read_bytes()
        assert bytes_a == (two.root / video_b.path).read_bytes()
        assert bytes_a != (other.root / video_c.path).read_bytes()
    text = "manifest.csv"
    assert (one.root / text).read_bytes() == (two.root / text).read_bytes()


def test_the_manifest_states_what_the_files_hold(tmp_path):
    manifest = write_videos(tmp_path, train_videos=24, val_videos=12, seed=1, num_workers=1)
    assert Manifest.read(tmp_path) == manifest
    assert sorted(v.labels[0] for v in manifest.split("val").videos) == list(range(12))
    for video in manifest.videos:
        found = probe(manifest.locate(video))
        assert found == VideoInfo(**{f.name: getattr(video, f.name) for f in fields(VideoInfo)})
        with av.open(manifest.locate(video).uri) as container:
            stream = container.streams.video[0]
            frames = list(container.decode(stream))
            assert len(frames) == video.num_frames
            assert (frames[0].width, frames[0].height) == (video.width, video.height)
            assert stream.average_rate == video.frame_rate
            assert stream.codec_context.name == video.codec == "h264"
    for field in ("frame_rate", "width", "height", "num_frames"):
        assert len({getattr(video, field) for video in manifest.videos}) > 3


def test_a_worker_that_is_killed_is_told_of_in_a_line(tmp_path, monkeypatch, capsys):
    def killed(*_, **__):
        yield ("train", 2), Failed("it ended the process that read it (signal SIGKILL)")

    monkeypatch.setattr("vcycle.demo.videos.run_jobs", killed)
    out = str(tmp_path / "videos")
    assert main(["data", "synth", out, "--train-videos", "4", "--val-videos", "4"]) == 2
    error = capsys.readouterr().err
    assert "videos/train: video 2 was not written (it ended the process" in error
    assert "give the same command again" in error
    assert error.count("\n") == 1


def test_writing_again_is_free_and_other_settings_are_refused(tmp_path):
    calls = []
    arguments = {"train_videos": 2, "val_videos": 1, "num_workers": 1}
    write_videos(tmp_path, **arguments, progress=lambda *count: calls.append(count))
    assert calls == [(1, 3), (2, 3), (3, 3)]
    write_videos(tmp_path, **arguments, progress=lambda *count: calls.append(count))
    assert len(calls) == 3
    with pytest.raises(ValueError, match="another directory"):
        write_videos(tmp_path, **arguments, seed=1)
    with pytest.raises(ValueError, match="val_videos 0: give at least 1"):
        write_videos(tmp_path, train_videos=1, val_videos=0)
    with pytest.raises(ValueError, match="seed -1: give a number of at least 0"):
        write_videos(tmp_path / "other", train_videos=1, val_videos=1, seed=-1)
    assert not (tmp_path / "other").exists()

    for name in ("train/00001.mp4", "manifest.csv"):
        (tmp_path / name).unlink()
        with pytest.raises(ValueError, match=f"{name} is gone; remove the folder to have all"):
            write_videos(tmp_path, **arguments)
    for text in ("", "3", "{"):
        (tmp_path / "synthetic.json").write_text(text)
        with pytest.raises(ValueError, match=r"synthetic\.json.*; remove the folder, or choose"):
            write_videos(tmp_path, **arguments)
