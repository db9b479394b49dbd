"""Indexing goes on where it was, whatever stopped it; failures of the machine are tried again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from tests.encode import encode, numbered_frames
from tests.processes import PATIENCE
from tests.web_server import serve
from vcycle.cli.main import main
from vcycle.cli.own_data import manifest_of
from vcycle.data.decode import remote
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import UnreadableVideo
from vcycle.data.workers.lifetime import process_context
from vcycle.datasets import index as index_module
from vcycle.datasets.choices import Choices
from vcycle.datasets.index import index_videos
from vcycle.datasets.journal import Journal
from vcycle.datasets.listing import Listing
from vcycle.datasets.own_videos import list_folder
from vcycle.datasets.video_table import list_table

NUM_VIDEOS = 6


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    (root / "train/run").mkdir(parents=True)
    one = encode(root / "train/run/0.mp4", numbered_frames(10, 32, 48))
    for k in range(1, NUM_VIDEOS):
        shutil.copy(one, root / f"train/run/{k}.mp4")
    (root / "train/run/3.mp4").write_text("no video")
    return root


def contents(folder):
    """All that an index wrote, but the journal, whose order is that of the answers."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "probes.jsonl"}


def _index_until_killed(root, out, num_workers):
    def kill(done, _):
        if done == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    index_videos(list_folder(root), out, num_workers=num_workers, progress=kill)


def interrupt(done, _):
    if done == 3:
        raise KeyboardInterrupt


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_an_interruption_the_same_bytes_come_out(videos, tmp_path, num_workers):
    listing = list_folder(videos)
    for out in ("complete", "stopped", "killed"):
        (tmp_path / out).mkdir()
    index_videos(listing, tmp_path / "complete", num_workers=num_workers)
    expected = contents(tmp_path / "complete")
    assert set(expected) == {"manifest.csv", "classes.txt", "listed.csv", "bad.csv", "index.json"}

    with pytest.raises(KeyboardInterrupt):
        index_videos(listing, tmp_path / "stopped", num_workers=num_workers, progress=interrupt)
    context = process_context()
    process = context.Process(
        target=_index_until_killed, args=(videos, tmp_path / "killed", num_workers)
    )
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    for out in (tmp_path / "stopped", tmp_path / "killed"):
        assert contents(out) == {}
        with (out / "probes.jsonl").open("a") as journal:
            journal.write('{"path": "train/run/5.mp4", "stamp"')
        (out / ".manifest.csv.999999").write_text("of the run that was killed")
        (out / ".mine.csv.999999").write_text("not ours")
        assert len(progress_of(listing, out, num_workers)) == NUM_VIDEOS - 3
        assert contents(out) == expected | {".mine.csv.999999": b"not ours"}
        assert progress_of(listing, out, num_workers) == []


def progress_of(listing, out, num_workers):
    counts = []
    index_videos(
        listing, out, num_workers=num_workers, progress=lambda *count: counts.append(count)
    )
    return counts


def _slow_or_dead(place, **options):
    name = Path(place.uri).name
    if name == "0.mp4":
        time.sleep(20)
    if name == "1.mp4":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "2.mp4":
        raise UnreadableVideo(place.uri, "Permission denied") from PermissionError()
    return probe(place, **options)


probe = index_module.probe


def test_what_may_have_been_the_machine_is_probed_again(videos, tmp_path, monkeypatch):
    monkeypatch.setattr(index_module, "probe", _slow_or_dead)
    first = index_videos(list_folder(videos), tmp_path, num_workers=2, limit_seconds=3)
    assert first.bad == {
        "train/run/0.mp4": "took longer than the time limit",
        "train/run/1.mp4": "it ended the process that read it (signal SIGKILL)",
        "train/run/2.mp4": "Permission denied",
        "train/run/3.mp4": "Invalid data found when processing input",
    }
    monkeypatch.setattr(index_module, "probe", probe)
    counts = []
    again = index_videos(
        list_folder(videos),
        tmp_path,
        num_workers=0,
        progress=lambda *count: counts.append(count),
    )
    assert list(again.bad) == ["train/run/3.mp4"]
    assert counts == [(4, 6), (5, 6), (6, 6)]


@pytest.mark.parametrize("fault", ["503", "403", "cut"])
def test_a_video_in_a_store_that_failed_is_fetched_again(videos, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(remote, "_RETRY_SECONDS", ())
    with serve(videos) as server:
        rows = [f"{server.url}/train/run/{k}.mp4,run,train\n" for k in (0, 1)]
        table = tmp_path / "videos.csv"
        table.write_text("path,label,split\n" + "".join(rows))
        listing = list_table(table)
        server.requests.clear()
        for faults in (["", fault], [fault]):  # the first row is not fetched again
            server.faults[:] = faults
            index = index_videos(listing, tmp_path, num_workers=0)
            assert list(index.bad) == [f"{server.url}/train/run/1.mp4"]
        assert not index_videos(listing, tmp_path, num_workers=0).bad
        assert len(server.requests) == 4


def test_a_changed_video_is_probed_again(videos, tmp_path):
    root = shutil.copytree(videos, tmp_path / "videos")
    index_videos(list_folder(root), num_workers=0)
    encode(root / "train/run/1.mp4", numbered_frames(14, 32, 48))
    again = index_videos(list_folder(root), num_workers=0)
    assert [video.num_frames for video in again.manifest.videos] == [10, 14, 10, 10, 10]


@pytest.mark.parametrize("error", [MemoryError(), PermissionError(13, "Permission denied")])
def test_one_video_never_ends_an_index(videos, tmp_path, monkeypatch, error):
    def hostile(place, **options):
        if Path(place.uri).name == "4.mp4":
            raise error
        return probe(place, **options)

    monkeypatch.setattr(index_module, "probe", hostile)
    index = index_videos(list_folder(videos), tmp_path, num_workers=1)
    assert set(index.bad) == {"train/run/3.mp4", "train/run/4.mp4"}
    assert len(index.manifest) == NUM_VIDEOS - 2


def test_rows_of_another_version_are_as_if_they_were_not(videos, tmp_path):
    index_videos(list_folder(videos), tmp_path, num_workers=0)
    expected = contents(tmp_path)
    journal = tmp_path / "probes.jsonl"
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    rows[0]["info"] = {"frames": 10}
    del rows[1]["stamp"]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    journal.write_bytes(b"3\n\x00\xff{\n" + text.encode())
    index_videos(list_folder(videos), tmp_path, num_workers=0)
    assert contents(tmp_path) == expected


def test_two_runs_do_not_write_to_one_folder(videos, tmp_path):
    with Journal(tmp_path / "probes.jsonl"):
        command = ("-m", "vcycle", "data", "index", "folder", videos, "--out", tmp_path)
        other = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False
        )
    assert other.returncode == 2
    assert other.stderr == (
        f"vcycle: {tmp_path}: another run is writing there; wait for it or choose another folder\n"
    )


def test_what_is_wrong_is_one_line_that_names_a_file_that_is_there(videos, tmp_path, capsys):
    gone = Listing(tmp_path, ("run",), (), missing=(("a", "train"), ("b", "val")))
    with pytest.raises(ValueError, match=r"2 listed are not in it \(see .*missing\.csv\)$"):
        index_videos(gone, num_workers=0)
    assert (tmp_path / "missing.csv").exists()
    assert not (tmp_path / "bad.csv").exists()
    command = ["data", "index", "folder", str(videos), "--out", str(tmp_path / "out")]
    assert main([*command, "--workers", "-1"]) == 2
    assert capsys.readouterr().err == "vcycle: num_workers -1: give 0 or more\n"
    assert not (tmp_path / "out").exists()


def test_a_folder_of_frames_that_cannot_be_listed_is_bad(tmp_path, monkeypatch):
    (tmp_path / "train/run/a").mkdir(parents=True)
    (tmp_path / "train/run/a/1.jpg").write_bytes(b"no image")
    encode(tmp_path / "train/run/b.mp4", numbered_frames(10, 32, 48))

    def unreadable(folder, *, frame_rate):
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr("vcycle.data.decode.probe.probe_frames", unreadable)
    index = index_videos(list_folder(tmp_path), num_workers=0)
    assert index.bad == {"train/run/a": "Permission denied"}


def test_an_index_resumes_quarantines_and_counts(put, tmp_path):
    root = put("train/run/a.mp4", "train/run/b.mp4", "val/run/c.mp4")
    (root / "train/run/text.mp4").write_text("no video")
    counts = []
    out = tmp_path / "index"
    index = index_videos(
        list_folder(root), out, num_workers=2, progress=lambda *count: counts.append(count)
    )
    assert counts[-1] == (4, 4)
    assert index.bad == {"train/run/text.mp4": "Invalid data found when processing input"}
    assert str(index) == "3 of 4 videos indexed in 1 class; 1 does not decode (bad.csv)"
    manifest = Manifest.read(out)
    assert manifest.coverage("train") == pytest.approx(2 / 3)
    assert manifest.split("val").coverage("val") == 1
    assert [manifest.locate(video).uri for video in manifest.videos] == [
        str(root / path) for path in ("train/run/a.mp4", "train/run/b.mp4", "val/run/c.mp4")
    ]
    counts.clear()
    lines = (out / "probes.jsonl").read_text().splitlines()
    kept = [line for line in lines if "b.mp4" not in line]
    (out / "probes.jsonl").write_text("\n".join(kept) + '\n{"path": "train/ru')
    again = index_videos(
        list_folder(root), out, num_workers=0, progress=lambda *count: counts.append(count)
    )
    assert counts == [(4, 4)]
    assert again.manifest == index.manifest


@pytest.mark.parametrize("damage", ["Infinity", "24.5"])
def test_counts_that_no_probe_finds_are_looked_up_again(put, tmp_path, damage):
    listing, out = list_folder(put("train/run/a.mp4", "val/run/b.mp4")), tmp_path / "out"
    index = index_videos(listing, out, num_workers=0)
    journal = out / "probes.jsonl"
    journal.write_text(re.sub(r'"num_frames": \d+', f'"num_frames": {damage}', journal.read_text()))
    assert index_videos(listing, out, num_workers=0).manifest == index.manifest


def test_names_that_cannot_be_written_are_quarantined(put, tmp_path):
    root = put("train/run/a.mp4", "train/run/b\nc.mp4", os.fsdecode(b"train/run/caf\xe9.mp4"))
    put(os.fsdecode(b"train/s\xeet/d.mp4"))
    index = index_videos(list_folder(root), tmp_path / "out", num_workers=1)
    assert sorted(index.bad) == [
        "train/run/b\\nc.mp4",
        "train/run/caf\\xe9.mp4",
        "train/s\\xeet/d.mp4",
    ]
    reason = "its name has a control character or bytes that are not UTF-8, escaped here; rename it"
    assert set(index.bad.values()) == {reason}
    assert f'train/run/caf\\xe9.mp4,"{reason}"' in (tmp_path / "out" / "bad.csv").read_text()
    manifest = Manifest.read(tmp_path / "out")
    assert manifest.classes == ("run", "s\\xeet")
    assert len(manifest) == 1
    put(os.fsdecode(b"../caf\xe9/run/a.mp4"))
    with pytest.raises(ValueError, match=r"its path .* is not UTF-8 text; rename it"):
        list_folder(tmp_path / os.fsdecode(b"caf\xe9"))


@pytest.mark.parametrize("split", ["train/", ""])
def test_a_folder_that_cannot_be_read_is_quarantined(put, shut, split):
    root = put(f"{split}run/a.mp4", f"{split}sit/b.mp4")
    shut("sit")
    index = index_videos(list_folder(root), num_workers=0)
    assert index.bad == {f"{split}sit": "Permission denied"}
    assert [video.path for video in index.manifest.videos] == [f"{split}run/a.mp4"]


def test_an_index_of_nothing_readable_is_an_error(put, tmp_path):
    root = put("train/run/a.mp4")
    (root / "train/run/a.mp4").write_text("no video")
    with pytest.raises(ValueError, match="none of 1 video decodes"):
        index_videos(list_folder(root), num_workers=0)


def test_a_choice_of_mirroring_is_kept(put, tmp_path):
    root = put("left_hook/a.mp4", "left_hook/b.mp4", "jab/a.mp4", "jab/b.mp4")

    def index(flip=None):
        index = index_videos(list_folder(root), choices=Choices(flip), num_workers=0)
        flips = {video.flip for video in index.manifest.videos}
        assert flips == {video.flip for video in Manifest.read(root).videos}
        return *flips, *index.notes

    named = "names such as left_hook tell left from right"
    assert index() == (False, f"clips are not mirrored: {named}; --flip mirrors them all the same")
    chosen = (True, f"clips are mirrored, as chosen with --flip, though {named}")
    assert index(True) == chosen
    assert index() == chosen
    assert index(False) == index() == (False, "clips are not mirrored, as chosen with --no-flip")
    shutil.rmtree(root / "left_hook")
    assert index() == (False, "clips are not mirrored, as chosen with --no-flip")
    assert index(True) == index() == (True,)


def test_an_index_stopped_before_its_manifest_is_taken_up_with_its_choices(
    videos, tmp_path, monkeypatch, capsys
):
    """One with a manifest and no choices would be taken for that of a table."""
    root = tmp_path / "videos"
    shutil.copytree(videos / "train", root)
    shutil.copytree(root / "run", root / "sit")

    def full(manifest, *_):
        raise OSError(28, "No space left on device", str(manifest.root / "manifest.csv"))

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", full)
        assert main(["data", "index", "folder", str(root), "--val-share", "0.4"]) == 2
    capsys.readouterr()
    assert manifest_of(root) == root
    counts = Counter(video.split for video in Manifest.read(root).videos)
    assert counts == {"train": 7, "val": 3}  # of a share of 0.1 there would be two


def test_frames_that_were_extracted_anew_are_probed_anew(tmp_path):
    """Over the old ones, which leaves the folder itself as it was; or at another frame rate."""

    def write(size):
        for folder in ("run/a", "sit/b"):
            for number in range(12):
                file = tmp_path / folder / f"{number:05d}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", size).save(file)

    def found(rate):
        listing = replace(list_folder(tmp_path, val_share=0), frame_rate=rate)
        videos = index_videos(listing, num_workers=0).manifest.videos
        return {(video.width, video.height, video.frame_rate) for video in videos}

    write((64, 48))
    assert found(30.0) == {(64, 48, 30.0)}
    assert found(24.0) == {(64, 48, 24.0)}
    write((128, 96))
    assert found(24.0) == {(128, 96, 24.0)}


def test_a_link_that_leads_nowhere_ends_no_index(tmp_path):
    for folder in ("run", "sit"):
        encode(folder_of(tmp_path, folder) / "a.mp4", numbered_frames(10, 32, 48))
    (tmp_path / "run" / "bad.mp4").symlink_to("x" * 300)
    indexed = index_videos(list_folder(tmp_path, val_share=0), num_workers=0)
    assert len(indexed.manifest) == 2
    assert list(indexed.bad) == ["run/bad.mp4"]


def folder_of(top, name):
    (top / name).mkdir(exist_ok=True)
    return top / name


def test_an_edit_while_videos_are_probed_is_kept(videos, tmp_path):
    listing = list_folder(videos)
    index_videos(listing, tmp_path, num_workers=0)
    (tmp_path / "probes.jsonl").unlink()
    manifest = tmp_path / "manifest.csv"

    def edit(done, total):
        manifest.write_text("mine")

    with pytest.raises(ValueError, match=r"its manifest\.csv or classes\.txt was edited since"):
        index_videos(listing, tmp_path, num_workers=0, progress=edit)
    assert manifest.read_text() == "mine"
