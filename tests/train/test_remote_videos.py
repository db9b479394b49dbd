"""A run whose shards are on a web server that fails now and then is the run from the disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from tests.s3_server import serve_s3
from tests.train.test_distributed import losses
from tests.web_server import serve
from vcycle.cli.main import main
from vcycle.config.fields import config_text
from vcycle.config.run import RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.data.manifest import Manifest
from vcycle.datasets.prepare import Preparation, prepare_videos
from vcycle.train.run import train


def test_a_run_from_a_failing_server_equals_one_from_the_disk(
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr("vcycle.data.decode.remote._RETRY_SECONDS", (0.0,) * 4)
    originals = Manifest.read(config.data.manifest)
    shards = prepare_videos(
        originals, tmp_path / "shards", Preparation(short_side=48), shard_bytes=30_000
    ).manifest
    size = sum(video.num_bytes for video in shards.videos)
    monkeypatch.chdir(tmp_path)
    with serve(tmp_path / "shards") as server:
        remote = [replace(video, path=f"{server.url}/{video.path}") for video in shards.videos]
        replace(shards, videos=tuple(remote)).write(tmp_path / "remote")
        for name, manifest in (("disk", "shards"), ("web", "remote")):
            server.every_third = True
            data = replace(
                config.data,
                manifest=str(tmp_path / manifest),
                num_workers=2,
                cache_gib=size / 2 / 2**30,
                cache_folder=str(tmp_path / "cache"),
            )
            assert train(replace(config, data=data), tmp_path / name)["bad_videos"] == 0
        assert losses(tmp_path / "web") == losses(tmp_path / "disk")
        rows = [read_rows(tmp_path / name / "validation.jsonl") for name in ("disk", "web")]
        assert [row["top1"] for row in rows[0]] == [row["top1"] for row in rows[1]]
        cached = [file.stat().st_size for file in Path("cache").glob("[!.]*")]
        assert 0 < sum(cached) <= size / 2

        server.ranges = False
        (tmp_path / "config.yaml").write_text(config_text(replace(config, data=data)))
        assert main(["train", "--config", "config.yaml", "--folder", "none"]) == 2
        error = capsys.readouterr().err
        assert "its server gives whole files, not ranges of bytes; serve shards from" in error
        assert error.count("\n") == 1


def test_a_run_says_that_its_cache_cannot_be_written(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    manifest = Manifest.read(config.data.manifest)
    store = fsspec.filesystem("memory")
    store.put(str(manifest.root), "/videos", recursive=True)
    far = [replace(video, path=f"memory://videos/{video.path}") for video in manifest.videos]
    replace(manifest, videos=tuple(far)).write(tmp_path / "remote")
    (tmp_path / "file").touch()
    data = replace(config.data, cache_folder=str(tmp_path / "file"))
    for where, is_said in ((config.data.manifest, False), (str(tmp_path / "remote"), True)):
        remote = replace(config, data=replace(data, manifest=where))
        train(remote, tmp_path / "run", dry_run=True)
        said = f"{tmp_path / 'file'}: File exists; every clip fetches its video anew; give"
        assert (said in capsys.readouterr().out) == is_said
    store.rm("/videos", recursive=True)


def test_a_run_from_s3_equals_one_from_the_disk(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    originals = Manifest.read(config.data.manifest)
    preparation = Preparation(short_side=48)
    shards = prepare_videos(originals, tmp_path / "shards", preparation, shard_bytes=30_000)
    with serve_s3(tmp_path / "shards", monkeypatch) as uri:
        videos = [replace(video, path=f"{uri}/{video.path}") for video in shards.manifest.videos]
        replace(shards.manifest, videos=tuple(videos)).write(tmp_path / "remote")
        for manifest in ("shards", "remote"):
            data = replace(config.data, manifest=str(tmp_path / manifest), num_workers=2)
            data = replace(data, cache_folder=str(tmp_path / "cache"))
            assert (
                train(replace(config, data=data), tmp_path / "runs" / manifest)["bad_videos"] == 0
            )
    assert losses(tmp_path / "runs" / "remote") == losses(tmp_path / "runs" / "shards")
    assert list((tmp_path / "cache").iterdir())
