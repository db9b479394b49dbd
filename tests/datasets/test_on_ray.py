"""Jobs on a Ray cluster: the same files as from one machine, and a node that dies ends nothing."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.encode import encode, numbered_frames
from vcycle.cli.main import main
from vcycle.data.manifest import Manifest
from vcycle.datasets.on_ray import run_jobs_on_ray
from vcycle.datasets.own_videos import index_own_videos
from vcycle.datasets.parallel import Failed
from vcycle.datasets.prepare import prepare_videos

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Six videos of two classes."""
    folder = tmp_path_factory.mktemp("videos")
    for k in range(6):
        (folder / f"class{k % 2}").mkdir(exist_ok=True)
        encode(folder / f"class{k % 2}" / f"{k}.mp4", numbered_frames(20 + k))
    return folder


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--ray", "auto"], "--ray auto: Ray is not installed; run `pip install 'vcycle[ray]'` "),
        (["--ray", "auto", "--workers", "2"], "--ray and --workers: the cluster says how many "),
    ],
)
def test_what_stands_in_the_way_is_one_line(videos, tmp_path, monkeypatch, capsys, flags, message):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["data", "index", "folder", str(videos), "--out", str(tmp_path), *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"vcycle: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:1", "Connection refused"), ("ray://127.0.0.1:1", "refused"), ("local", "invalid")],
)
def test_an_address_without_a_cluster_is_refused_at_once(
    videos, tmp_path, monkeypatch, capsys, address, reason
):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    flags = ["--out", str(tmp_path), "--ray", address]
    assert main(["data", "index", "folder", str(videos), *flags]) == 2
    error = capsys.readouterr().err
    assert re.match(rf"vcycle: --ray {address}: no cluster answers there \(.*{reason}", error)
    assert error.count("\n") == 1


@pytest.fixture(scope="module")
def cluster():
    """A head without CPUs, to which this process connects, and two nodes of one CPU."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    nodes = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    for _ in range(2):
        nodes.add_node(num_cpus=1, include_dashboard=False)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield nodes
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    nodes.shutdown()


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def _die(task):
    what, folder = task
    with (folder / what).open("a") as attempts:
        attempts.write("once\n")
    if what == "process":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "worker":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    if what == "node" and (folder / what).read_text() == "once\n":
        raylet = _parent(os.getppid())
        assert Path(f"/proc/{raylet}/comm").read_text() == "raylet\n"
        for process in (raylet, os.getppid()):
            os.kill(process, signal.SIGKILL)
        time.sleep(60)
    return what


def outcomes(cluster, folder, *names):
    """What became of jobs, and how often each was begun."""
    from vcycle.datasets.on_ray import run_jobs_on_ray

    jobs = [(name, folder) for name in names]
    found = run_jobs_on_ray(_die, jobs, address=cluster.address, limit_seconds=lambda _: 60)
    results = {name: outcome for (name, _), outcome in found}
    return {name: (results[name], (folder / name).read_text().count("once")) for name in names}


def test_a_job_that_kills_its_process_or_its_worker_fails_alone(cluster, tmp_path):
    assert outcomes(cluster, tmp_path, "first", "process", "worker", "last") == {
        "first": ("first", 1),
        "process": (Failed("it ended the process that read it (signal SIGKILL)", passing=True), 2),
        "worker": (Failed("4 workers or nodes died while they read it", passing=True), 4),
        "last": ("last", 1),
    }


def test_a_job_of_a_dead_node_is_done_again(cluster, tmp_path):
    assert outcomes(cluster, tmp_path, "node")["node"] == ("node", 2)
    cluster.add_node(num_cpus=1, include_dashboard=False)
    assert outcomes(cluster, tmp_path, "a", "b") == {"a": ("a", 1), "b": ("b", 1)}


def contents(folder: Path) -> dict[str, bytes]:
    """What a folder holds but for its journals, whose lines are in the order of the work."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".jsonl"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_a_cluster_that_loses_a_node_writes_the_same_bytes(cluster, videos, tmp_path, monkeypatch):
    """By relative paths, which mean nothing to the nodes."""
    monkeypatch.chdir(tmp_path)
    doomed = [node for node in cluster.list_all_nodes() if node is not cluster.head_node][-1]

    def lose_a_node(done: int, of: int) -> None:
        if done == 1:
            cluster.remove_node(doomed, allow_graceful=False)

    for name, how in (
        ("here", {"num_workers": 0}),
        ("there", {"ray": cluster.address}),
    ):
        index_own_videos(videos, Path(name, "index"), **how)
        progress = lose_a_node if "ray" in how else None
        prepare_videos(Manifest.read("here/index"), f"{name}/fast", progress=progress, **how)
    assert len(contents(Path("here/fast"))) > 6
    assert contents(Path("there")) == contents(Path("here"))


def test_a_cluster_whose_last_node_is_gone_is_waited_for_and_that_is_said(monkeypatch, capsys):
    """Its tasks end once a node joins; here 40 seconds pass in each wait."""
    looks, now = iter([2, 0, 0, 0, 2]), itertools.count(0, 40)
    clock = [next(now)]

    def wait(running, timeout):
        clock[0] = next(now)
        return (running, []) if clock[0] > 160 else ([], running)

    fake = SimpleNamespace(
        is_initialized=lambda: True,
        cluster_resources=lambda: {"CPU": cpus} if (cpus := next(looks, 2)) else {},
        remote=lambda **_: lambda function: SimpleNamespace(remote=lambda job: job),
        wait=wait,
        get=lambda job: 10 * job,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr("vcycle.datasets.on_ray.time.monotonic", lambda: clock[0])
    done = run_jobs_on_ray(abs, [1, 2], address="auto", limit_seconds=lambda job: 1.0)
    assert sorted(done) == [(1, 10), (2, 20)]
    assert capsys.readouterr().err == "--ray auto: no node with a CPU is left; waiting\n"


def test_a_folder_that_a_node_lacks_ends_the_work(videos, tmp_path, monkeypatch):
    """On any machine: a node's answer is the same."""
    listed = index_own_videos(videos, tmp_path).manifest
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    monkeypatch.setattr("pathlib.Path.is_dir", lambda path: path.name != "fast")
    with pytest.raises(OSError, match="no such folder on node7; give one that all nodes share"):
        prepare_videos(listed, tmp_path / "fast", num_workers=0)
