"""A prepared folder holds what its record says, whatever ran before; other files are left alone."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import av
import pytest

from tests.encode import encode, numbered_frames
from tests.processes import PATIENCE
from vcycle.cli.main import main
from vcycle.data.decode.container import source_of
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import iterate_frames
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location, UnreadableVideo, Video
from vcycle.data.workers.lifetime import process_context
from vcycle.datasets import prepare as prepare_module
from vcycle.datasets.index import index_videos
from vcycle.datasets.journal import Journal
from vcycle.datasets.own_videos import list_folder
from vcycle.datasets.prepare import Preparation, prepare_videos

SMALL = Preparation(short_side=16)
SHARD_BYTES = 6000  # two of the videos


def add_video(root, path, num_frames=4, **facts):
    """Encode a video; its line of a manifest."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    encode(root / path, numbered_frames(num_frames, 16, 24))
    info = dataclasses.asdict(probe(Location(str(root / path))))
    return Video(path=path, split="train", **{"labels": (0,), **info, **facts})


@pytest.fixture
def originals(tmp_path):
    """Five small videos, the third one twice, with other labels."""
    root = tmp_path / "originals"
    videos = [add_video(root, f"{'ab'[k % 2]}/{k}.mkv", 4 + k) for k in range(5)]
    videos.insert(3, dataclasses.replace(videos[2], labels=(1,), split="val"))
    manifest = Manifest(root, ("no", "yes"), tuple(videos))
    manifest.write()
    return manifest


def prepare(manifest, out, **options):
    return prepare_videos(manifest, out, SMALL, **{"num_workers": 0, **options})


def contents(folder):
    """All that was written but the journal, which tells the story and not the end."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "prepared.jsonl"
    }


def frames_of(manifest):
    return [sum(1 for _ in iterate_frames(manifest.locate(v), v)) for v in manifest.videos]


def test_a_folder_with_other_things_is_refused_and_left_as_it_is(originals, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(originals.root, copy)
    before = contents(copy)
    command = ["data", "prepare", str(originals.root), str(copy)]
    for flags in ([], ["--shard-mb", "1"]):
        assert main([*command, *flags]) == 2
        assert capsys.readouterr().err == (
            f"vcycle: {copy}: holds a, which `vcycle data prepare` did not write; "
            "choose an empty folder\n"
        )
    assert contents(copy) == before
    (copy / "prepared.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"prepared\.json: was not written by"):
        prepare(originals, copy)


def test_a_file_that_is_in_the_way_is_refused_and_left_as_it_is(originals, tmp_path):
    out = tmp_path / "out"
    one = dataclasses.replace(originals, videos=originals.videos[:1])
    prepare(one, out)
    mine = out / originals.videos[-1].path
    mine = mine.with_name(f"{mine.name}.mp4")
    mine.write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"4\.mkv\.mp4: is in the way, and was not written by"):
        prepare(originals, out)
    assert mine.read_bytes() == b"mine"


def test_a_journal_of_others_names_no_file_outside(originals, tmp_path):
    """And rows that are damaged are none."""
    out, outside = tmp_path / "out", tmp_path / "outside"
    prepared = prepare(originals, out).manifest
    outside.mkdir()
    (outside / ".note.1234").write_text("precious")
    name = prepared.videos[0].path
    info = {"num_frames": 4, "frame_rate": 1, "duration_seconds": 4, "width": 16, "height": 24}
    made = {"name": name, "stamp": [], "info": info, "num_bytes": 5}
    rows = [
        {"name": "../outside/note"},
        {"name": str(outside / "note")},
        {"name": [name]},
        {"name": "b\0/1.mp4"},
        {**made, "num_bytes": "x"},
        {**made, "stamp": 5},
        {"shard": "s", "ranges": [1]},
        {"shard": "s", "ranges": {name: 5}},
        {"shard": "s", "ranges": {name: ["a", "b"]}},
    ]
    for row in rows:
        with (out / "prepared.jsonl").open("a") as journal:
            journal.write(json.dumps(row) + "\n")
        assert prepare(originals, out).manifest == prepared, row
    assert (outside / ".note.1234").read_text() == "precious"


def test_a_link_in_the_folder_is_not_followed(originals, tmp_path):
    out, outside = tmp_path / "out", tmp_path / "outside"
    prepare(originals, out)
    shutil.rmtree(out / "a")
    outside.mkdir()
    (outside / "0.mkv.mp4").write_text("precious")
    (out / "a").symlink_to(outside)
    with pytest.raises(ValueError, match=rf"^{out}/a: leads out of {out}; replace the link by a f"):
        prepare(originals, out)
    (out / "prepared.jsonl").unlink()
    (out / "a" / "0.mkv.mp4").unlink()
    shutil.rmtree(out / "b")
    with pytest.raises(ValueError, match=rf"^{out}/a: leads out of {out}; replace the link by a f"):
        prepare(originals, out)


def test_two_runs_do_not_write_to_one_folder(originals, tmp_path):
    out = tmp_path / "out"
    prepare(originals, out)
    before = contents(out)
    with Journal(out / "prepared.jsonl"):
        command = ("-m", "vcycle", "data", "prepare", originals.root, out)
        other = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False
        )
    assert other.returncode == 2
    assert other.stderr.startswith(f"vcycle: {out}: another run is writing there; wait for it")
    assert contents(out) == before


def test_another_dataset_is_refused(originals, tmp_path):
    prepare(originals, tmp_path / "out")
    other = tmp_path / "other"
    shutil.copytree(originals.root, other)
    with pytest.raises(ValueError, match=r"prepared otherwise \(source '.*originals', not '.*oth"):
        prepare(dataclasses.replace(originals, root=other), tmp_path / "out")


@pytest.mark.parametrize(
    ("first", "then", "reason"),
    [
        ({}, {"shard_bytes": 9}, "shard_bytes 0, not 9"),
        ({"shard_bytes": 9}, {}, "shard_bytes 9, not 0"),
        ({"shard_bytes": 9}, {"shard_bytes": 10}, "shard_bytes 9, not 10"),
        ({"shard_bytes": 9}, {"shard_bytes": 9, "base_uri": "s3://b"}, "base_uri '', not 's3://b'"),
    ],
)
def test_files_stay_files_and_shards_stay_shards(originals, tmp_path, first, then, reason):
    prepare(originals, tmp_path / "out", **first)
    before = contents(tmp_path / "out")
    with pytest.raises(ValueError, match=f"prepared otherwise .{reason}.; choose another folder"):
        prepare(originals, tmp_path / "out", **then)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("shard_bytes", [0, SHARD_BYTES])
def test_what_is_new_or_changed_is_prepared_and_nothing_else(
    originals, tmp_path, monkeypatch, shard_bytes
):
    out = tmp_path / "out"
    some = dataclasses.replace(originals, videos=originals.videos[:4])
    assert len(prepare(some, out, shard_bytes=shard_bytes).manifest) == 4
    content = (originals.root / "b/3.mkv").read_bytes()
    (originals.root / "b/1.mkv").write_bytes(content)  # of 7 frames, where the manifest has 5
    indexed_again = add_video(originals.root, "a/2.mkv", 17)
    pair = (indexed_again, dataclasses.replace(indexed_again, labels=(1,)))
    videos = (*originals.videos[:2], *pair, *originals.videos[4:])
    (originals.root / originals.videos[0].path).unlink()  # but its prepared video is there
    worked_on = []

    def noted(place, info):
        worked_on.append(Path(place.uri).name)
        return iterate_frames(place, info)

    monkeypatch.setattr(prepare_module, "iterate_frames", noted)
    again = prepare(dataclasses.replace(originals, videos=videos), out, shard_bytes=shard_bytes)
    worked_on = [name for name in worked_on if name.endswith(".mkv")]
    assert worked_on == ["1.mkv", "2.mkv", "3.mkv", "4.mkv"]
    assert frames_of(again.manifest) == [4, 5, 17, 17, 7, 8]
    assert [video.labels for video in again.manifest.videos] == [(0,)] * 3 + [(1,)] + [(0,)] * 2
    assert not again.bad
    assert Manifest.read(out) == again.manifest
    assert samples_of(out) == list(range(7 if shard_bytes else 0))  # two of them superseded


def samples_of(folder):
    """The numbers of the samples in all shards."""
    numbers = []
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            numbers += [int(name[:8]) for name in tar.getnames() if name.endswith(".mp4")]
    return numbers


def test_another_frame_rate_in_the_manifest_is_a_change(originals, tmp_path):
    """As of folders of frames, which have none of their own."""
    prepare(originals, tmp_path / "out")
    videos = tuple(dataclasses.replace(video, frame_rate=5.0) for video in originals.videos)
    again = prepare(dataclasses.replace(originals, videos=videos), tmp_path / "out").manifest
    assert {video.frame_rate for video in again.videos} == {5.0}


@pytest.mark.parametrize("shard_bytes", [0, SHARD_BYTES])
def test_a_video_that_failed_is_told_each_time_and_may_succeed(
    originals, tmp_path, monkeypatch, shard_bytes
):
    def hostile(place, info):
        if place.uri.endswith("2.mkv"):
            raise UnreadableVideo(place.uri, "no frame decodes")
        return iterate_frames(place, info)

    monkeypatch.setattr(prepare_module, "iterate_frames", hostile)
    for _ in range(2):
        prepared = prepare(originals, tmp_path / "out", shard_bytes=shard_bytes)
        assert prepared.bad == {"a/2.mkv": "no frame decodes"}
        assert len(prepared.manifest) == 4
    monkeypatch.setattr(prepare_module, "iterate_frames", iterate_frames)
    prepared = prepare(originals, tmp_path / "out", shard_bytes=shard_bytes)
    assert frames_of(prepared.manifest) == [4, 5, 6, 6, 7, 8]
    assert not (tmp_path / "out/bad.csv").exists()


def test_a_video_in_two_lines_is_stored_once_and_keeps_all_its_labels(originals, tmp_path):
    out = tmp_path / "out"
    prepared = prepare(originals, out, shard_bytes=10**9).manifest
    first, second = prepared.videos[2:4]
    assert (first.path, first.offset, first.num_bytes) == (
        second.path,
        second.offset,
        second.num_bytes,
    )
    assert [(v.labels, v.split) for v in (first, second)] == [((0,), "train"), ((1,), "val")]
    with tarfile.open(out / "shard-000000.tar") as tar:
        assert len(tar.getnames()) == 2 * 5
        facts = json.load(tar.extractfile("00000002.json"))
    assert (facts["labels"], facts["split"]) == ([0], "train")
    assert [(line["labels"], line["split"]) for line in facts["also"]] == [([1], "val")]


def test_names_that_collide_make_two_videos(tmp_path):
    root = tmp_path / "originals"
    videos = [add_video(root, "a.avi", 4), add_video(root, "a.avi.mp4", 9)]
    prepared = prepare(Manifest(root, ("no",), tuple(videos)), tmp_path / "out").manifest
    assert frames_of(prepared) == [4, 9]


def test_another_original_of_the_same_name_is_prepared(tmp_path):
    root, out = tmp_path / "originals", tmp_path / "out"
    for path, num_frames in (("a.avi", 4), ("a.avi.mp4", 9)):
        manifest = Manifest(root, ("no",), (add_video(root, path, num_frames),))
        prepared = prepare(manifest, out).manifest
        assert [video.path for video in prepared.videos] == ["a.avi.mp4"]
        assert frames_of(prepared) == [num_frames]


def test_a_shard_that_was_lost_is_made_again_unless_it_is_served(originals, tmp_path):
    for base_uri in ("", "memory://elsewhere"):
        out = tmp_path / f"out{len(base_uri)}"
        options = {"shard_bytes": SHARD_BYTES, "base_uri": base_uri}
        first = prepare(originals, out, **options).manifest
        (out / "shard-000000.tar").unlink()
        again = prepare(originals, out, **options).manifest
        if base_uri:
            assert again == first
        else:
            assert frames_of(again) == [4, 5, 6, 6, 7, 8]


def _prepare_until(manifest, out, options, moment):
    """A run that is killed before its ``moment``-th change of the disk that lasts."""
    changes = itertools.count()

    def counted(function):
        def call(*arguments, **options):
            if next(changes) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    Path.replace, Path.unlink = counted(Path.replace), counted(Path.unlink)
    Journal.add = counted(Journal.add)
    prepare(manifest, out, **options)


@pytest.mark.parametrize("shard_bytes", [0, SHARD_BYTES])
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(originals, tmp_path, shard_bytes):
    options = {"shard_bytes": shard_bytes}
    prepare(originals, tmp_path / "complete", **options)
    expected = contents(tmp_path / "complete")
    assert ("shard-000001.tar" in expected) == bool(shard_bytes)
    context = process_context()
    left_to_do = []
    for moment in itertools.count():
        out = tmp_path / str(moment)
        arguments = (originals, out, options, moment)
        process = context.Process(target=_prepare_until, args=arguments)
        process.start()
        process.join(PATIENCE)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        counts = []
        prepare(originals, out, progress=lambda *count, to=counts: to.append(count), **options)
        left_to_do.append(len(counts))
        assert contents(out) == expected, f"killed before change {moment}"
    assert left_to_do == sorted(left_to_do, reverse=True)  # nothing that was done was lost
    assert (left_to_do[0], left_to_do[-1]) == (5, 0)


def interrupt(done, _):
    if done == 3:
        raise KeyboardInterrupt


@pytest.mark.parametrize("shard_bytes", [0, SHARD_BYTES])
def test_interrupted_with_workers_it_goes_on_to_the_same_bytes(originals, tmp_path, shard_bytes):
    options = {"shard_bytes": shard_bytes, "num_workers": 2}
    prepare(originals, tmp_path / "complete", **options)
    with pytest.raises(KeyboardInterrupt):
        prepare(originals, tmp_path / "out", progress=interrupt, **options)
    assert not list((tmp_path / "out").rglob(".*"))
    prepare(originals, tmp_path / "out", **options)
    assert contents(tmp_path / "out") == contents(tmp_path / "complete")


def test_no_half_written_file_stays(originals, tmp_path, monkeypatch):
    """Neither of a video that took too long, nor of a run that was killed; others' do."""
    out = tmp_path / "out"

    def slow(place, info):
        if ".2.mkv.mp4." in place.uri:  # it has been written and is read again
            time.sleep(60)
        return iterate_frames(place, info)

    monkeypatch.setattr(prepare_module, "iterate_frames", slow)
    prepared = prepare(originals, out, num_workers=2, limit_seconds=3)
    assert prepared.bad == {"a/2.mkv": "took longer than the time limit"}
    assert not list(out.rglob(".*"))
    monkeypatch.setattr(prepare_module, "iterate_frames", iterate_frames)
    stale = [out / "a/.2.mkv.mp4.999999", out / ".manifest.csv.999999", out / ".bad.csv.999999"]
    mine = [out / "a/.mine.mp4.999999", out / "a/.2.mkv.mp4.old", out / "b/.2.mkv.mp4.999999"]
    for file in (*stale, *mine):
        file.write_bytes(b"half")
    prepare(originals, out)
    assert [file.exists() for file in (*stale, *mine)] == [False] * 3 + [True] * 3


def test_shards_are_read_through_their_manifest(originals, tmp_path):
    prepare(originals, tmp_path / "files")
    files = Manifest.read(tmp_path / "files")
    shards = prepare(originals, tmp_path / "shards", shard_bytes=SHARD_BYTES).manifest
    assert len({video.path for video in shards.videos}) > 1
    assert not list((tmp_path / "shards").rglob("*.mp4"))
    assert samples_of(tmp_path / "shards") == [0, 1, 2, 3, 4]
    for file, part in zip(files.videos, shards.videos, strict=True):
        place = shards.locate(part)
        remote = dataclasses.replace(place, uri=f"file://{place.uri}")
        content = source_of(remote)
        assert isinstance(content, io.BytesIO)
        assert content.read() == Path(files.locate(file).uri).read_bytes()


def test_frames_that_were_extracted_anew_are_prepared_anew(tmp_path):
    """Over the old ones, which leaves the folder itself as it was."""
    frames = tmp_path / "frames"

    def extract(numbers):
        for k, rgb in enumerate(numbers):
            file = frames / "a" / "v" / f"{k:06d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            av.VideoFrame.from_ndarray(rgb, format="rgb24").save(str(file))

    extract(numbered_frames(6))
    originals = index_videos(list_folder(frames), num_workers=0).manifest
    first = prepare(originals, tmp_path / "out").manifest
    before = (first.root / first.videos[0].path).read_bytes()
    prepare(originals, tmp_path / "out")
    assert (first.root / first.videos[0].path).read_bytes() == before
    extract(numbered_frames(6)[::-1])
    prepare(originals, tmp_path / "out")
    assert (first.root / first.videos[0].path).read_bytes() != before
    shutil.rmtree(frames / "a")  # gone, it counts as unchanged
    assert prepare(originals, tmp_path / "out").manifest.videos


@pytest.mark.parametrize("shard_bytes", [0, SHARD_BYTES])
def test_a_prepared_file_that_was_cut_off_is_made_again(originals, tmp_path, shard_bytes):
    """As a copy of the folder leaves it for which a disk had no room."""
    out = tmp_path / "out"
    first = prepare(originals, out, shard_bytes=shard_bytes).manifest
    file = out / first.videos[-1].path
    os.truncate(file, 600)
    again = prepare(originals, out, shard_bytes=shard_bytes).manifest
    assert frames_of(again) == [4, 5, 6, 6, 7, 8]
