"""What the machine is made of: facts that can be checked, and advice for made-up machines."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vcycle
from vcycle.bench.machine import GIB, Gpu, Machine, advice, inspect_machine
from vcycle.devices.cores import process_cores


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("disk")
    machine = inspect_machine(folder)
    assert not list(folder.iterdir())
    return machine


def test_facts(machine: Machine) -> None:
    assert machine.versions["vcycle"] == vcycle.__version__
    assert machine.versions["torch"] == torch.__version__.partition("+")[0] or "+" in str(
        machine.versions["torch"]
    )
    assert len(machine.gpus) == torch.cuda.device_count()
    assert machine.cpus == process_cores()
    assert 0 < machine.memory_gib * GIB <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.open_files <= machine.open_files_limit
    assert machine.disk.write_mb_per_second > 0 < machine.disk.read_mb_per_second
    values = json.loads(json.dumps(machine.to_dict()))
    assert values["disk"]["folder"] == machine.disk.folder
    assert values["decoders"]["pyav"] == "works"
    assert values["advice"] == list(advice(machine))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        inspect_machine(tmp_path / "missing")


def test_a_good_machine_has_nothing_to_change(machine: Machine) -> None:
    good = replace(
        machine,
        cuda="12.8",
        gpus=(Gpu("one", 80.0, "9.0"),) * 2,
        cpus=32,
        decoders=dict.fromkeys(machine.decoders, "works"),
        shared_memory_gib=16.0,
        open_files=65_536,
        disk=replace(machine.disk, read_mb_per_second=900.0),
    )
    assert not list(advice(good))
    changes = {
        "GPUs: none; ": {"gpus": (), "cuda": "12.8"},
        "CPUs 4: few to decode for 2 GPUs": {"cpus": 4},
        "shared memory 0.062 GiB: ": {"shared_memory_gib": 1 / 16},
        "open files 1024: ": {"open_files": 1024},
        "disk of ": {"disk": replace(machine.disk, read_mb_per_second=20.0)},
    }
    for start, change in changes.items():
        (line,) = advice(replace(good, **change))  # type: ignore[arg-type]
        assert line.startswith(start)
