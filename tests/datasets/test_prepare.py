"""Preparing: the same videos, cheaper; resumable, and the originals as they were."""

from __future__ import annotations

import dataclasses
import errno
import json
import tarfile

import av
import fsspec
import numpy as np
import pytest

from tests.encode import encode, encode_combed, encode_combed_dv, numbered_frames, rotate_display
from vcycle.cli.main import main
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.encode import encode_video_frames
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import iterate_frames, read_clip
from vcycle.data.grid import Box, Grid, GridRange, View
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location, Video
from vcycle.data.request import ClipRequest
from vcycle.datasets import prepare as prepare_module
from vcycle.datasets.prepare import Preparation, check_apart, prepare_videos
from vcycle.schedule.shape import Shape

SMALL = Preparation(short_side=48)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A landscape, a rotated one of odd size in mkv, one that is no video, one with a gap."""
    root = tmp_path_factory.mktemp("originals")
    (root / "a").mkdir()
    encode(root / "a/wide.mp4", numbered_frames(30, 64, 96))
    rotate_display(encode(root / "a/turned.mp4", numbered_frames(20, 66, 98)), 3)
    times = [0.1 * k + (0.5 if k > 9 else 0) for k in range(20)]
    encode(root / "gap.mkv", numbered_frames(20), times=times)
    (root / "text.avi").write_text("no video")
    facts = {"num_frames": 10, "frame_rate": 10.0, "duration_seconds": 1, "width": 9, "height": 9}
    text = Video(path="text.avi", labels=(0,), split="train", **facts)
    videos = [text]
    for path, labels in (("a/wide.mp4", (1,)), ("a/turned.mp4", (0,)), ("gap.mkv", (1,))):
        info = probe(Location(str(root / path)))
        videos.append(Video(path=path, labels=labels, split="train", **dataclasses.asdict(info)))
    manifest = Manifest(root, ("no", "yes"), tuple(videos))
    manifest.write()
    return manifest


def snapshot(root):
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in root.rglob("*") if p.is_file()}


def test_prepared_videos_show_the_same_and_cost_less(originals, tmp_path):
    before = snapshot(originals.root)
    counts = []
    prepared = prepare_videos(
        originals, tmp_path, SMALL, num_workers=2, progress=lambda *count: counts.append(count)
    )
    assert snapshot(originals.root) == before
    assert counts[-1] == (4, 4)
    assert prepared.bad == {"text.avi": "Invalid data found when processing input"}
    assert str(prepared).endswith("; 1 left out (bad.csv)")
    assert (tmp_path / "bad.csv").read_text().splitlines()[1].startswith("text.avi,")
    assert Manifest.read(tmp_path) == prepared.manifest
    paths = [video.path for video in prepared.manifest.videos]
    assert paths == ["a/wide.mp4", "a/turned.mp4", "gap.mkv.mp4"]
    for old, new in zip(originals.videos[1:], prepared.manifest.videos, strict=True):
        assert (new.labels, new.split, new.num_frames) == (old.labels, old.split, old.num_frames)
        assert new.duration_seconds == pytest.approx(old.duration_seconds, abs=0.11)
        assert min(new.width, new.height) == 48
        assert (new.width > new.height) == (old.width > old.height)
        assert (new.key_interval, new.rotation, new.codec) == (1, 0, "h264")
        a, b = (
            read_clip(
                manifest.locate(video),
                Grid((0, 7, 14), Box(0, 0, video.height, video.width), 40, 40, False),
            )
            for manifest, video in ((originals, old), (prepared.manifest, new))
        )
        assert np.abs(a.astype(int) - b).mean() < 4


def test_preparing_again_resumes(originals, tmp_path):
    first = prepare_videos(originals, tmp_path, SMALL, num_workers=0)
    made = snapshot(tmp_path)
    (tmp_path / "a/turned.mp4").unlink()
    again = prepare_videos(originals, tmp_path, SMALL, num_workers=0)
    assert again.manifest == first.manifest
    after = snapshot(tmp_path)
    del made[tmp_path / "prepared.jsonl"]
    for path, (mtime, size) in made.items():
        assert after[path][1] == size
        if path.name in ("wide.mp4", "gap.mkv.mp4"):
            assert after[path][0] == mtime
    with pytest.raises(ValueError, match=r"prepared otherwise \(short_side 48, not 32\); choose"):
        prepare_videos(originals, tmp_path, Preparation(short_side=32))
    with pytest.raises(ValueError, match="holds the originals"):
        prepare_videos(originals, originals.root, SMALL)


def test_nothing_is_prepared_among_the_originals(originals, capsys):
    """An index of their folder would find it; beside that folder is another matter."""
    for inside in ("fast", "a/fast"):
        assert main(["data", "prepare", str(originals.root), str(originals.root / inside)]) == 2
        error = capsys.readouterr().err
        assert error.endswith("holds the originals; choose a folder outside it\n")
        assert error.count("\n") == 1
        assert not (originals.root / inside).exists()
    videos = [dataclasses.replace(v, path=f"videos/{v.path}") for v in originals.videos]
    above = dataclasses.replace(originals, videos=tuple(videos))
    check_apart(above, originals.root / "fast")
    with pytest.raises(ValueError, match="videos holds the originals"):
        check_apart(above, originals.root / "videos/fast")


def test_a_small_video_is_not_enlarged(originals, tmp_path):
    one = dataclasses.replace(originals, videos=originals.videos[1:2])
    video = prepare_videos(one, tmp_path, num_workers=0).manifest.videos[0]
    assert (video.height, video.width) == (64, 96)


@pytest.mark.parametrize("change", [{"short_side": 8}, {"key_interval": 0}, {"quality": 60}])
def test_settings_that_make_no_sense_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Preparation(**change)


def test_shards_hold_the_same_clips(originals, tmp_path):
    files = prepare_videos(originals, tmp_path / "files", SMALL, num_workers=0).manifest
    packed = prepare_videos(originals, tmp_path / "s", SMALL, num_workers=0, shard_bytes=1).manifest
    assert [video.path for video in packed.videos] == [f"shard-00000{i}.tar" for i in range(3)]
    assert not list((tmp_path / "s").rglob("*.mp4"))
    assert not [path for path in (tmp_path / "s").rglob("*") if path.is_dir()]
    grid_range = GridRange(Shape(4, 32, 32), 2, (37, 49))
    for index in range(3):
        request = ClipRequest(index, Shape(4, 32, 32), 0, View())
        a, b = (ClipDataset(manifest, grid_range)[request] for manifest in (files, packed))
        assert np.array_equal(a.pixels, b.pixels)
        assert a.labels == b.labels
    again = prepare_videos(originals, tmp_path / "s", SMALL, num_workers=0, shard_bytes=1)
    assert again.manifest == packed


def test_shards_are_plain_tars_and_are_read_by_range_from_anywhere(originals, tmp_path):
    prepare_videos(originals, tmp_path / "files", SMALL, num_workers=0)
    packed = prepare_videos(
        originals,
        tmp_path / "s",
        SMALL,
        num_workers=0,
        shard_bytes=10**9,
        base_uri="memory://shards-of-a-test/",
    ).manifest
    with tarfile.open(tmp_path / "s/shard-000000.tar") as tar:
        names = tar.getnames()
        assert names[:2] == ["00000000.mp4", "00000000.json"]
        about = json.load(tar.extractfile("00000001.json"))
        assert about["labels"] == [0]
        content = tar.extractfile("00000002.mp4").read()
    assert content == (tmp_path / "files/gap.mkv.mp4").read_bytes()
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe(
        "/shards-of-a-test/shard-000000.tar", (tmp_path / "s/shard-000000.tar").read_bytes()
    )
    for video in packed.videos:
        assert probe(packed.locate(video)).num_frames == video.num_frames


def prepare_one(path, out, *, num_workers=0, **facts):
    """Prepare a file as the only video beside a good one; why it was left out, if it was."""
    info = dataclasses.asdict(probe(Location(str(path)))) | facts
    good = encode(path.with_name("good.mkv"), numbered_frames(4, 32, 48))
    good_info = dataclasses.asdict(probe(Location(str(good))))
    videos = (
        Video(path=path.name, labels=(0,), split="train", **info),
        Video(path="good.mkv", labels=(0,), split="train", **good_info),
    )
    manifest = Manifest(path.parent, ("no",), videos)
    prepared = prepare_videos(manifest, out, SMALL, num_workers=num_workers)
    assert prepared.manifest.videos[-1].path == "good.mkv.mp4"
    return prepared.bad.get(path.name), prepared.manifest


@pytest.mark.parametrize(
    ("encoded", "name"), [(encode_combed, "v.mp4"), (encode_combed_dv, "v.avi")]
)
def test_interlaced_videos_are_prepared_without_combs(encoded, name, tmp_path):
    _, prepared = prepare_one(encoded(tmp_path / name), tmp_path / "out")
    video = prepared.videos[0]
    (frame, *_) = iterate_frames(prepared.locate(video), video)
    assert np.abs(np.diff(frame.to_ndarray(format="gray").astype(int), axis=0)).mean() < 10


def test_the_longest_names_are_shortened(tmp_path):
    path = encode(tmp_path / f"{251 * 'n'}.mkv", numbered_frames(4, 32, 48))
    reason, manifest = prepare_one(path, tmp_path / "out")
    assert reason is None
    assert probe(manifest.locate(manifest.videos[0])).num_frames == 4


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "not enough memory"),
        (OSError(errno.ENAMETOOLONG, "File name too long"), "File name too long"),
        (av.error.ExternalError(0, "Generic error"), "Generic error"),
        (ZeroDivisionError("Fraction(1, 0)"), "ZeroDivisionError: Fraction(1, 0)"),
    ],
)
def test_one_video_never_ends_a_preparation(tmp_path, monkeypatch, num_workers, error, reason):
    path = encode(tmp_path / "v.mkv", numbered_frames(4, 32, 48))

    def hostile(place, info):
        if place.uri == str(path):
            raise error
        return iterate_frames(place, info)

    monkeypatch.setattr(prepare_module, "iterate_frames", hostile)
    out = tmp_path / "out"
    found, manifest = prepare_one(path, out, num_workers=num_workers)
    assert (found, len(manifest)) == (reason, 1)
    monkeypatch.setattr(prepare_module, "iterate_frames", iterate_frames)
    found, manifest = prepare_one(path, out, num_workers=num_workers)
    assert (found, len(manifest)) == (None, 2)


def on_a_full_disk(_, *arguments, **options):
    return encode_video_frames("/dev/full", *arguments, **options)


def as_if_on_a_full_disk(path, *_, **__):
    raise av.error.OSError(errno.ENOSPC, "No space left on device", str(path))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("encoder", "named"),
    [(on_a_full_disk, "/dev/full"), (as_if_on_a_full_disk, "out/text.avi.mp4")],
)
def test_a_full_disk_ends_the_run_with_one_line(
    originals, tmp_path, monkeypatch, capsys, num_workers, encoder, named
):
    monkeypatch.setattr(prepare_module, "encode_video_frames", encoder)
    command = ["data", "prepare", str(originals.root), str(tmp_path / "out")]
    assert main([*command, "--workers", str(num_workers)]) == 2
    assert capsys.readouterr().err in (
        f"vcycle: {place}: No space left on device\n" for place in (named, tmp_path / named)
    )
    assert not (tmp_path / "out/bad.csv").exists()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--workers", "-1"], "num_workers -1: give 0 or more"),
        (["--shard-mb", "-1"], "shard_bytes -1000000: give a positive size, or 0 for no shards"),
        (
            ["--base-uri", "s3://b"],
            "base_uri 's3://b': shards are served from there; give shard_bytes",
        ),
        (
            ["--shard-mb", "1", "--base-uri", "/data/shards"],
            "base_uri '/data/shards': give a URI such as s3://bucket/kinetics",
        ),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_done(originals, tmp_path, capsys, flags, line):
    command = ["data", "prepare", str(originals.root), str(tmp_path / "out")]
    assert main([*command, *flags]) == 2
    assert capsys.readouterr().err.startswith(f"vcycle: {line}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "first"),
    [
        ([], ""),
        (["--shard-mb", "1"], ""),
        (
            ["--shard-mb", "1", "--base-uri", "memory://there"],
            "copy {}/*.tar to memory://there, then ",
        ),
    ],
)
def test_the_last_line_says_what_to_do_with_them(originals, tmp_path, capsys, flags, first):
    out = str(tmp_path / "out")
    command = ["data", "prepare", str(originals.root), out, "--short-side", "48", "--workers", "0"]
    assert main([*command, *flags]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{first.format(out)}train on them: vcycle train {out}"
