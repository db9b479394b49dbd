"""The cores of a process: what it may run on, less if a control group limits it."""

from __future__ import annotations

import os

import pytest

from vcycle.devices import control_groups, cores
from vcycle.devices.cores import CoreUse, default_workers, process_cores


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine of which this process has 12 cores."""
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "_OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 12),
        ({"cpu.max": "max 100000\n"}, 12),
        ({"cpu.max": "450000 100000\n"}, 4),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "2000000 100000\n"}, 12),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 12),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"own": "0::/slurm/job\n", "slurm/job/cpu.max": "200000 100000\n"}, 2),
        ({"own": "0::/slurm/job\n", "slurm/cpu.max": "500000 100000\n"}, 5),
        ({"own": "0::/slurm/job\n", "other/cpu.max": "100000 100000\n"}, 12),
        (
            {
                "own": "4:cpu,cpuacct:/job\n0::/\n",
                "cpu/job/cpu.cfs_quota_us": "400000\n",
                "cpu/job/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
    ],
)
def test_a_quota_limits_the_cores(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert process_cores() == expected


@pytest.mark.parametrize(("processes", "workers"), [("1", 12), ("4", 3), ("5", 2), ("16", 1)])
def test_processes_on_the_machine_share_them(monkeypatch, processes, workers):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert default_workers() == workers


TASKS = {"LOCAL_WORLD_SIZE": "8", "SLURM_CPUS_PER_TASK": "12", "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}
AGENT = {"LOCAL_WORLD_SIZE": "8", "SLURM_CPUS_PER_TASK": "96", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}


@pytest.mark.parametrize(
    ("environment", "granted", "expected"),
    [
        (TASKS, 12, 12),  # each bound to its own
        (TASKS, 96, 12),  # none is bound
        (AGENT, 96, 12),  # torchrun in one task a node
        (AGENT | {"SLURM_STEP_TASKS_PER_NODE": "1,2"}, 96, 12),
        ({"SLURM_CPUS_PER_TASK": "12"}, 12, 12),  # a batch script
    ],
)
def test_cores_that_slurm_binds_are_divided_by_the_processes_of_a_task(
    monkeypatch, environment, granted, expected
):
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(cores, "process_cores", lambda: granted)
    assert default_workers() == expected


def test_others_are_what_was_used_of_these_cores_and_not_by_this_process(tmp_path, monkeypatch):
    # user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice, in ticks of 10 ms
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 9 9\n"
        "cpu0 1000 100 10 5000 50 1 2 3 900 90\n"
        "cpu1 2000 0 0 5000 0 0 0 0 0 0\n"
        "cpu10 7000 0 0 0 0 0 0 0 0 0\nintr 1 2 3\n"
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    assert cores._busy_seconds(stat) == pytest.approx(11.16 + 20)
    assert cores._busy_seconds(tmp_path / "none") == 0
    before = CoreUse(by_all=100.0, by_self=5.0, at=50.0)
    assert CoreUse(by_all=118.0, by_self=13.0, at=60.0).others_since(before) == pytest.approx(1.0)
    assert (
        CoreUse(by_all=107.9, by_self=13.0, at=60.0).others_since(before) == 0
    )  # ticks are coarse
    assert CoreUse(by_all=0.0, by_self=13.0, at=60.0).others_since(CoreUse(0.0, 5.0, 50.0)) == 0
