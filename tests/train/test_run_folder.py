"""What a run folder may hold for a run to begin there; bad videos of several processes."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vcycle.config.run import Data, Model, Optimizer, RunConfig
from vcycle.data.bad_videos import BadVideos, TooManyBadVideos
from vcycle.data.json_lines import read_rows
from vcycle.data.loader import Loader
from vcycle.data.manifest import Manifest
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape
from vcycle.train.loop import share_bad_videos
from vcycle.train.run_folder import RunFolder, config_text

CONFIG = RunConfig(
    recipe="test",
    baseline=Baseline(Shape(8, 32, 32), 4, 66, 24, LearningRate(0.01), (33, 50)),
    multigrid=Multigrid(norm_group=4),
    data=Data("videos"),
    model=Model("resnet3d_tiny"),
)
VIDEOS = Manifest(Path("videos"), ("one", "two"), ())
BEGUN = CONFIG, VIDEOS
NEW: dict[str, Any] = {"resumed": None, "predicted_seconds": 1.0}


def test_bad_videos_are_counted_over_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process found as many as a run accepts; together they found more."""
    own = [{"a.mp4": "cut off"}, {"b.mp4": "no frame"}]

    class Videos(Loader):
        def __init__(self) -> None:
            self._bad = BadVideos(num_videos=20, max_share=0.05)

    def gather(lists: list[Any], mine: dict[str, str]) -> None:
        lists[:] = own if mine in own else [mine, mine]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    for rank in (0, 1):
        folder = RunFolder(tmp_path, rank=rank)
        loaders = Videos(), Videos()
        loaders[0].add_bad_videos(own[rank])
        run: Any = SimpleNamespace(
            fabric=SimpleNamespace(world_size=2),
            folder=folder,
            loader=loaders[0],
            val_loader=loaders[1],
        )
        with pytest.raises(TooManyBadVideos, match=r"2 of 20 videos cannot be read"):
            share_bad_videos(run, *loaders)
    assert json.loads((tmp_path / "bad_videos.json").read_text()) == {**own[0], **own[1]}
    assert [file.name for file in tmp_path.iterdir()] == ["bad_videos.json"]


def test_a_start_cut_short_by_a_crash_hides_no_later_one(tmp_path: Path) -> None:
    folder, file = RunFolder(tmp_path), tmp_path / "starts.jsonl"
    for number in range(2):
        folder.add_start({"start": number})
    file.write_text(file.read_text()[:-4])
    folder.add_start({"start": 2})
    assert read_rows(file) == [{"start": 0}, {"start": 2}]


def test_rows_that_a_full_disk_does_not_take_are_named(tmp_path: Path) -> None:
    folder, limits = RunFolder(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
        with pytest.raises(OSError, match=r"metrics\.jsonl"):
            folder.add_steps([{"step": number, "loss": 1.0} for number in range(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\0", b"\xff", b"a: [", b"- a", b"3", b"{}", b"a: !!python/object:a"),
        *(b"data: {}", b"data: 1\nmodel: {}", b"data: {}\nmodel:", b"2020-99-99"),
    ],
)
def test_a_config_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint.pt").touch()
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.yaml: no configuration of a run") as caught:
        RunFolder(tmp_path).begin(CONFIG, resume=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [Path("manifest.csv"), np.int64(3)])
def test_a_value_that_no_file_can_say_is_refused(tmp_path: Path, value: object) -> None:
    config = replace(CONFIG, model=Model("somewhere:network", options={"given": value}))
    with pytest.raises(ValueError, match=rf"^configuration: .* is a {type(value).__name__}; give"):
        RunFolder(tmp_path / "run").begin(config, resume=False)
    assert not (tmp_path / "run").exists()


def test_a_run_in_a_read_only_folder_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoint.pt").touch()
    (tmp_path / "config.yaml").write_text(config_text(CONFIG))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"it is read-only; copy it, and resume there"):
        RunFolder(tmp_path).begin(CONFIG, resume=True)
    assert RunFolder(tmp_path).begin(CONFIG, resume=True, dry_run=True) == "resumed"


def test_a_run_with_other_fields_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").touch()
    file = tmp_path / "config.yaml"
    file.write_text(config_text(CONFIG))
    for resume in (True, "auto"):
        assert RunFolder(tmp_path).begin(CONFIG, resume=resume) == "resumed"
    file.write_text(config_text(replace(CONFIG, threads=3, notes=("a",))))
    assert RunFolder(tmp_path).begin(CONFIG, resume=True) == "resumed"
    other = replace(CONFIG, seed=1, optimizer=Optimizer(momentum=0.5))
    file.write_text(config_text(other) + "colour: red\n")
    with pytest.raises(ValueError, match="resume with the same") as caught:
        RunFolder(tmp_path).begin(CONFIG, resume="auto")
    for differing in (
        "seed is 1 in it, 0 now",
        "optimizer.momentum is 0.5 in it, 0.9 now",
        "colour is red in it, not set now",
    ):
        assert differing in str(caught.value)
    assert str(caught.value).count(" in it, ") == 3


def test_auto_begins_where_nothing_is_and_where_a_kill_left_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for resume in (False, "auto"):
        assert RunFolder(path).begin(CONFIG, resume=resume) == "new"
    (path / ".config.yaml.123").write_text("reci")  # of a write that was killed
    assert RunFolder(path).begin(CONFIG, resume="auto") == "new"
    RunFolder(path).start(*BEGUN, first_step=0, **NEW)
    assert RunFolder(path).begin(CONFIG, resume="auto") == "new"
    with pytest.raises(ValueError, match="not empty"):
        RunFolder(path).begin(CONFIG, resume=False)
    with pytest.raises(ValueError, match="no checkpoint to resume from"):
        RunFolder(path).begin(CONFIG, resume=True)
    (path / "result.json").write_text("{}")
    assert RunFolder(path).begin(CONFIG, resume="auto") == "complete"


@pytest.mark.parametrize(
    "name", ["plan.json", "metrics.jsonl", "starts.jsonl", "result.json", "best.pt"]
)
def test_auto_begins_beside_files_of_others_but_not_of_a_run(tmp_path: Path, name: str) -> None:
    """A scheduler may write its log there."""
    (tmp_path / "slurm-1.out").touch()
    with pytest.raises(ValueError, match="not empty"):
        RunFolder(tmp_path).begin(CONFIG, resume=False)
    with pytest.raises(ValueError, match="no checkpoint to resume from"):
        RunFolder(tmp_path).begin(CONFIG, resume=True)
    assert RunFolder(tmp_path).begin(CONFIG, resume="auto") == "new"
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=r"config\.yaml: no configuration of a run"):
        RunFolder(tmp_path).begin(CONFIG, resume="auto")


def lock_elsewhere(path: Path) -> str:
    """What another process is told that would write in a folder; nothing if it may."""
    code = (
        "import sys; from pathlib import Path; from vcycle.train.lock import FolderLock\n"
        "try: FolderLock(Path(sys.argv[1])).take()\n"
        "except ValueError as error: print(error)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    ).stdout


def test_a_folder_is_locked_from_the_beginning_and_again_free_if_nothing_came_of_it(
    tmp_path: Path,
) -> None:
    """Before the rehearsal, that is: two of the same command would end each other's run."""
    path = tmp_path / "runs" / "new"
    folder = RunFolder(path)
    assert folder.begin(CONFIG, resume="auto") == "new"
    assert "in use by process" in lock_elsewhere(path)
    folder.close()
    assert not path.exists()
    path.mkdir()
    with closing(RunFolder(path)) as folder:
        assert folder.begin(CONFIG, resume=False) == "new"
    assert path.exists()  # the user made it
    path = tmp_path / "runs" / "begun"
    with closing(RunFolder(path)) as folder:
        folder.begin(CONFIG, resume=False)
        folder.start(*BEGUN, first_step=0, **NEW)
    assert (path / "config.yaml").exists()
    assert lock_elsewhere(path) == ""
    dry = RunFolder(tmp_path / "dry")
    assert dry.begin(CONFIG, resume=False, dry_run=True) == "new"
    assert not (tmp_path / "dry").exists()


def test_a_lock_of_a_folder_that_was_just_removed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends removes it between another's opening and locking the file."""

    def remove_and_lock(*_: Any) -> None:
        (tmp_path / "run" / ".lock").unlink()

    monkeypatch.setattr("vcycle.train.lock.fcntl.lockf", remove_and_lock)
    with pytest.raises(ValueError, match="in use by another process"):
        RunFolder(tmp_path / "run").begin(CONFIG, resume="auto")


def test_a_lock_of_a_machine_that_may_be_dead_is_waited_for_in_an_elastic_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of NFS keeps it for a while; another run's on this machine is refused at once."""
    monkeypatch.setattr("vcycle.train.lock.socket.gethostname", lambda: "node2")
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "file.write(f'process 7 of me on {sys.argv[2]} since 1970'); file.flush(); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    for host, restarts in (("node1", "3"), ("node2", "3"), ("node1", "0")):
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
        folder = tmp_path / f"{host}-{restarts}"
        folder.mkdir()
        with subprocess.Popen(
            [sys.executable, "-c", code, str(folder / ".lock"), host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            waited = []

            def the_lease_ends(seconds: float, holder: Any = holder, waited: Any = waited) -> None:
                waited.append(seconds)
                holder.communicate()

            monkeypatch.setattr("vcycle.train.lock.time.sleep", the_lease_ends)
            run = RunFolder(folder)
            if (host, restarts) == ("node1", "3"):
                assert run.begin(CONFIG, resume="auto") == "new"
                assert waited == [1.0]
                run.close()
            else:
                with pytest.raises(ValueError, match=f"in use by process 7 of me on {host}"):
                    run.begin(CONFIG, resume="auto")
                assert not waited
                holder.communicate()


def test_a_folder_that_cannot_be_made_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (Path("/proc/foo"), tmp_path / "file" / "run"):
        with pytest.raises(OSError, match=str(path)):
            RunFolder(path).begin(CONFIG, resume=False)


def test_the_result_of_an_earlier_run_is_none_of_one_that_begins(tmp_path: Path) -> None:
    for name in ("result.json", "scores.csv"):
        (tmp_path / name).write_text("{}")
    with zipfile.ZipFile(tmp_path / "checkpoint.pt", "w"):
        pass  # intact
    RunFolder(tmp_path).start(*BEGUN, first_step=5, **NEW)
    assert (tmp_path / "scores.csv").exists()
    assert not (tmp_path / "result.json").exists()
    RunFolder(tmp_path).start(*BEGUN, first_step=0, **NEW)
    assert not (tmp_path / "scores.csv").exists()


def test_a_complete_run_needs_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(config_text(CONFIG))
    (tmp_path / "result.json").write_text("{}")
    for resume in (True, "auto"):
        with closing(RunFolder(tmp_path)) as folder:
            assert folder.begin(CONFIG, resume=resume) == "complete"


def test_a_dry_run_leaves_a_folder_as_it_was(tmp_path: Path) -> None:
    (tmp_path / ".config.yaml.123").write_text("reci")  # of a write that was killed
    with closing(RunFolder(tmp_path)) as folder:
        assert folder.begin(CONFIG, resume="auto", dry_run=True) == "new"
    assert [each.name for each in tmp_path.iterdir()] == [".config.yaml.123"]


def test_a_run_ends_without_the_rows_that_somebody_removed(tmp_path: Path) -> None:
    RunFolder(tmp_path).start(*BEGUN, first_step=0, **NEW)
    (tmp_path / "validation.jsonl").write_text('{"step": 65, "top1": 0.5}\n')
    assert RunFolder(tmp_path).finish(CONFIG.plan(), None)["top1"] == 0.5


def test_a_damaged_row_costs_a_run_that_goes_on_no_other(tmp_path: Path) -> None:
    numbers = '"seconds": 1.0, "seconds_left": 2.0, "waiting_seconds": 0.5, "batch_size": 4'
    rows = [f'{{"step": {step}, {numbers}}}' for step in (0, '"1"', 2, "NaN", 3)]
    rows[1:1] = "\0\0\0", '{"step": 1}'
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl: line 2 is damaged .*; restore the file"):
        read_rows(tmp_path / "metrics.jsonl")
    RunFolder(tmp_path).start(*BEGUN, first_step=3, **NEW)
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [0, 2]


@pytest.mark.parametrize("content", ["[1]", "5", "{", "[" * 100_000])
def test_a_damaged_file_is_named_before_anything_is_written(tmp_path: Path, content: str) -> None:
    (tmp_path / "checkpoint.pt").touch()
    (tmp_path / "config.yaml").write_text(config_text(CONFIG))
    (tmp_path / "plan.json").write_text(content)
    assert RunFolder(tmp_path).predicted_seconds() is None  # it is written again
    (tmp_path / "bad_videos.json").write_text(content)
    with pytest.raises(ValueError, match=r"bad_videos\.json.*; restore it, or remove it"):
        RunFolder(tmp_path).begin(CONFIG, resume=True)
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(ValueError, match=r"result\.json.*; restore it, or remove it"):
        RunFolder(tmp_path).result()


def test_pipes_among_the_files_are_not_waited_for(tmp_path: Path) -> None:
    names = ("metrics.jsonl", "validation.jsonl", "plan.json", "starts.jsonl", "nonfinite.jsonl")
    for name in names:
        os.mkfifo(tmp_path / name)
    folder = RunFolder(tmp_path)
    folder.start(*BEGUN, first_step=3, **NEW)
    folder.add_start({"step": 3})
    assert not any((tmp_path / name).is_fifo() for name in names)


def test_best_weights_that_cannot_be_read_just_now_are_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worse validation would replace them."""
    folder = RunFolder(tmp_path)
    (tmp_path / "validation.jsonl").write_text('{"step": 4, "top1": 0.9}\n')
    assert folder.is_best({"top1": 0.1})
    file = tmp_path / "best.safetensors"
    file.write_bytes(b"damaged")
    assert folder.is_best({"top1": 0.1})

    def unreachable(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("vcycle.evaluate.checkpoint.is_safetensors", unreachable)
    with pytest.raises(OSError, match=r"Input/output error: .*best\.safetensors"):
        folder.is_best({"top1": 0.1})


@pytest.mark.parametrize("name", [".lock", "manifest"])
def test_nothing_is_written_through_a_link_in_the_folder(tmp_path: Path, name: str) -> None:
    """An archive of somebody else's run may hold one, to a file or folder of one's own."""
    theirs, run = tmp_path / "theirs", tmp_path / "run"
    theirs.mkdir()
    run.mkdir()
    (theirs / "manifest.csv").write_text("precious")
    (run / name).symlink_to(theirs if name == "manifest" else theirs / "manifest.csv")
    with pytest.raises(ValueError, match=f"{name}.* a link"):
        RunFolder(run).begin(CONFIG, resume="auto")
    assert (theirs / "manifest.csv").read_text() == "precious"


def test_rows_are_on_the_disk_when_they_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    folder.start(*BEGUN, first_step=0, **NEW)
    synced: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name)
    )
    folder.sync_rows()
    assert {"metrics.jsonl", "validation.jsonl", "phases.jsonl"} <= set(synced)


def test_a_run_that_goes_on_forgets_the_phase_that_it_is_in_and_keeps_its_prediction(
    tmp_path: Path,
) -> None:
    RunFolder(tmp_path).start(*BEGUN, first_step=0, resumed=None, predicted_seconds=100.0)
    rows = "".join(f'{{"phase": {phase}}}\n' for phase in range(4))
    (tmp_path / "phases.jsonl").write_text(rows)
    plan = CONFIG.plan()
    inside = plan.phases[2].first_step + 1
    assert inside < plan.phases[2].end_step
    folder = RunFolder(tmp_path)
    folder.start(*BEGUN, first_step=inside, resumed=None, predicted_seconds=7.0)
    assert [row["phase"] for row in read_rows(tmp_path / "phases.jsonl")] == [0, 1]
    assert folder.predicted_seconds() == 100.0


def test_totals_are_those_of_the_rows(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.start(*BEGUN, first_step=0, **NEW)
    folder.add_steps(
        [
            {"step": k, "loss": 1.0, "waiting_seconds": 0.25, "seconds": k + 1.0, "seconds_left": 0}
            for k in range(4)
        ]
    )
    folder.add_validation({"step": 3, "top1": 0.5, "seconds": 4.0})
    result = folder.finish(CONFIG.plan(), None)
    assert (result["waiting_seconds"], result["seconds"]) == (1.0, 4.0)
