"""Runs on several hosts: they follow one, and go on if a process, a node or a job ends.

The hosts are network namespaces of this machine, torchrun agents, and tasks of a stand-in for
``srun``, which sets the variables that SLURM's does.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.processes import PATIENCE, kill_group
from tests.train.test_distributed import losses, run_config
from vcycle.config.fields import config_text
from vcycle.config.run import Checkpoint, Model, RunConfig
from vcycle.train.run import train

pytestmark = pytest.mark.xdist_group("processes")
SCRIPT = Path(__file__).parents[2] / "examples" / "slurm.sh"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TRAIN = ["vcycle", "train", "--config", "config.yaml", "--folder", "run", "--resume", "auto"]
OWN_MODEL = ["--model", "model:build"]
# A model that does something once, at its fourth training step. A nap makes a step so long that the
# processes soon vote on stopping, which they do about every two seconds.
MODEL = """
import os, pathlib, signal, time
from vcycle.models.tiny import TinyResNet3d

class Model(TinyResNet3d):
    steps = 0

    def forward(self, clips):
        begun = any(pathlib.Path().glob("run*/**/config.yaml"))
        if self.training and begun:  # the rehearsal is over
            self.steps += 1
            time.sleep(float(os.environ.get("NAP", "0")))
            if self.steps == 4 and not os.path.exists("done") and {condition}:
                pathlib.Path("done").touch()
                {action}
        return super().forward(clips)

def build(num_classes):
    return Model(num_classes=num_classes, width=4)
"""


@pytest.fixture(scope="module")
def config(synthetic_videos: Path) -> RunConfig:
    config = run_config(synthetic_videos, Model("resnet3d_tiny", {"width": 4}))
    return replace(config, checkpoint=Checkpoint(steps=1, keep=100))


@pytest.fixture(scope="module")
def expected(config: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run that one process trains from beginning to end."""
    folder = tmp_path_factory.mktemp("one") / "run"
    train(config, folder)
    return losses(folder)


def write(config: RunConfig, folder: Path, *, condition: str, action: str) -> None:
    """The configuration of a run whose model does ``action``, with that model."""
    (folder / "model.py").write_text(MODEL.format(condition=condition, action=action))
    (folder / "config.yaml").write_text(config_text(replace(config, model=Model("model:build"))))


def start(command: list[str], folder: Path, **variables: str) -> subprocess.Popen[str]:
    """A command that leads a process group, with its output in a file of its own."""
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )


def wait(*processes: subprocess.Popen[str]) -> list[int]:
    """Their exit codes; none may hang."""
    try:
        return [process.wait(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            kill_group(process.pid)


def went_on(folder: Path) -> bool:
    """Whether a run kept what was trained before its model did something."""
    # Of the step before, the first process may have been writing the checkpoint.
    kept = folder / "run" / "checkpoints" / "step_00000002.pt"
    return kept.stat().st_mtime < (folder / "done").stat().st_mtime


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two network namespaces with an interface ``wire`` each: 10.99.0.1 and 10.99.0.2."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("making a network namespace needs root and iproute2")
    first, second = names = [f"vcycle-{os.getpid()}-{k}" for k in (1, 2)]
    if subprocess.run(["ip", "netns", "add", first], capture_output=True).returncode:
        pytest.skip("no network namespace can be made here")

    def ip(command: str) -> None:
        subprocess.run(["ip", *command.split()], check=True)

    try:
        ip(f"netns add {second}")
        ip(f"-n {first} link add wire type veth peer name wire netns {second}")
        for k, name in enumerate(names, start=1):
            ip(f"-n {name} addr add 10.99.0.{k}/24 dev wire")
            ip(f"-n {name} link set wire up")
            ip(f"-n {name} link set lo up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name])


def test_two_hosts_train_as_one_does(
    config: RunConfig, expected: list[float], tmp_path: Path, hosts: list[str]
) -> None:
    (tmp_path / "config.yaml").write_text(config_text(config))
    nodes = [
        start(
            [
                *(
                    "ip",
                    "netns",
                    "exec",
                    host,
                    *TORCHRUN,
                    "--nnodes",
                    "2",
                    "--node-rank",
                    str(rank),
                ),
                *("--nproc-per-node", "1", "--master-addr", "10.99.0.1"),
                *("--master-port", "29500", "-m", *TRAIN),
            ],
            tmp_path,
            GLOO_SOCKET_IFNAME="wire",
        )
        for rank, host in enumerate(hosts)
    ]
    assert wait(*nodes) == [0, 0], (tmp_path / "output.txt").read_text()
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_machine_does_not_wait_for_another_that_failed_before_they_met(
    config: RunConfig, tmp_path: Path, rank: int
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = []
    for each in (0, 1):
        (tmp_path / f"node{each}").mkdir()
        if each != rank:
            (tmp_path / f"node{each}" / "config.yaml").write_text(config_text(config))
        command = [*TORCHRUN, "--nnodes", "2", "--node-rank", str(each), "--nproc-per-node", "1"]
        command += ["--master-addr", "127.0.0.1", "--master-port", str(port), "-m", *TRAIN]
        nodes.append(start(command, tmp_path / f"node{each}"))
    assert wait(*nodes) == [1, 1]  # of torchrun, whose process exits with 2
    reason = "config.yaml: No such file or directory"
    assert f"vcycle: {reason}\n" in (tmp_path / f"node{rank}" / "output.txt").read_text()
    said = (tmp_path / f"node{1 - rank}" / "output.txt").read_text()
    # The first machine keeps the store: if its process fails at once, there may be no word in it.
    is_gone = rank == 0 and "is gone; see what the first machine says\n" in said
    assert is_gone or f"vcycle: process {rank}: {reason}\n" in said


@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_goes_on_from_the_last_checkpoint_when_a_process_is_killed(
    config: RunConfig, expected: list[float], tmp_path: Path, rank: int
) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    write(config, tmp_path, condition=f"os.environ['RANK'] == '{rank}'", action=kill)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    process = start([*command, "-m", *TRAIN, *OWN_MODEL], tmp_path)
    assert wait(process) == [0], (tmp_path / "output.txt").read_text()
    assert went_on(tmp_path)
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-5)


def test_a_run_goes_on_without_a_node_that_died(
    config: RunConfig, expected: list[float], tmp_path: Path
) -> None:
    """Its agent and its process are killed at once, as when a machine loses power."""
    kill = "[os.kill(each, signal.SIGKILL) for each in (os.getppid(), os.getpid())]"
    alone = "os.environ.get('NODE') == 'second' and os.environ['WORLD_SIZE'] == '2'"
    write(config, tmp_path, condition=alone, action=kill)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    nodes = [
        start(
            [
                *(*TORCHRUN, "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "2"),
                *("--local-addr", "127.0.0.1", "--rdzv-backend", "c10d", "--rdzv-id", "run"),
                *("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf"),
                f"is_host={host},last_call_timeout=10,keep_alive_interval=2",
                *("-m", *TRAIN, *OWN_MODEL),
            ],
            tmp_path,
            NODE=name,
        )
        for name, host in (("first", "true"), ("second", "false"))
    ]
    output = tmp_path / "output.txt"
    assert wait(*nodes) == [0, -signal.SIGKILL], output.read_text()
    assert went_on(tmp_path)
    assert losses(tmp_path / "run") == pytest.approx(expected, rel=1e-5)


SRUN = """
import os, signal, subprocess, sys, time
options = ("--cpus-per-task=", "--kill-on-bad-exit=1")
command = [word for word in sys.argv[1:] if not word.startswith(options)]
step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "127.0.0.1"}
step |= {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
tasks = [
    subprocess.Popen(
        command,
        env={**os.environ, **step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank},
        start_new_session=True,
    )
    for rank in ("0", "1")
]
def notify(*_):  # SLURM signals every process of a step
    for task in tasks:
        os.killpg(task.pid, signal.SIGUSR1)
signal.signal(signal.SIGUSR1, notify)
running = list(tasks)
while running:  # the first that fails ends the others, with SIGTERM
    time.sleep(0.02)
    failed = [task for task in running if task.poll()]
    running = [task for task in running if task.returncode is None]
    for task in running if failed and "--kill-on-bad-exit=1" in sys.argv else ():
        os.killpg(task.pid, signal.SIGTERM)
killed = [128 - task.returncode for task in tasks if task.returncode < 0]
sys.exit(max(killed or [task.returncode for task in tasks]))
"""


def test_a_slurm_job_is_requeued_before_its_time_limit_and_goes_on(
    config: RunConfig, expected: list[float], tmp_path: Path
) -> None:
    """``examples/slurm.sh`` itself, with the commands of SLURM replaced."""
    config = replace(config, data=replace(config.data, num_workers=1))
    notify = "os.kill(os.getppid(), signal.SIGUSR1)"
    write(config, tmp_path, condition="os.environ['RANK'] == '1'", action=notify)
    tools = {
        "srun": f"#!{sys.executable}{SRUN}",
        "scontrol": '#!/bin/sh\necho "$@" >> scontrol.txt\n',
        "vcycle": f'#!/bin/sh\nexec {sys.executable} -m vcycle "$@"\n',
    }
    (tmp_path / "bin").mkdir()
    for name, text in tools.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "4321", "SLURM_JOB_NAME": "job", "SLURM_CPUS_PER_TASK": "1"}
    job |= {"SLURM_NTASKS": "2", "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    output, asked = tmp_path / "output.txt", tmp_path / "scontrol.txt"
    for code, nap in ((130, "0.4"), (0, "0")):
        command = ["bash", str(SCRIPT), "--config", "config.yaml", *OWN_MODEL]
        script = start(command, tmp_path, **job, NAP=nap)
        assert wait(script) == [code], output.read_text()
        assert asked.read_text() == "requeue 4321\n"
    assert "vcycle: stopped after step" in output.read_text()
    assert losses(tmp_path / "runs" / "job-4321") == pytest.approx(expected, rel=1e-5)
