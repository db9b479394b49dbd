"""Tasks of ``srun`` become the processes that torchrun would have started."""

from __future__ import annotations

import os

import pytest

from vcycle.devices.slurm import adopt_srun_tasks

TASK = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
OURS = {
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "gpu07",
    "MASTER_PORT": "19569",
}


def adopted(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> dict[str, str]:
    """What is added to this environment."""
    monkeypatch.setattr(os, "environ", dict(environment))
    adopt_srun_tasks()
    return {name: text for name, text in os.environ.items() if environment.get(name) != text}


def test_a_task_is_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert adopted(monkeypatch, TASK) == OURS
    one_node = {"SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_STEP_NODELIST": "gpu07"}
    assert adopted(monkeypatch, TASK | one_node) == OURS | {"LOCAL_WORLD_SIZE": "8"}
    given = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    rest = {name: text for name, text in OURS.items() if name not in given}
    assert adopted(monkeypatch, TASK | given) == rest


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # a batch script
        TASK | {"SLURM_STEP_NUM_TASKS": "1"},
        TASK | {"WORLD_SIZE": "16"},  # torchrun in a task
    ],
)
def test_other_processes_stay_what_they_are(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    assert adopted(monkeypatch, environment) == {}


def test_nodes_of_unequal_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"4,2: every node needs as many tasks; give srun --nt"):
        adopted(monkeypatch, TASK | {"SLURM_STEP_TASKS_PER_NODE": "4,2"})
