"""The memory of a process: the machine's, or what its container has left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vcycle.devices import control_groups, memory
from vcycle.devices.memory import free_memory_bytes, memory_bytes

GIB = 2**30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """16 GiB, of which 10 are free."""
    sizes = {"SC_PHYS_PAGES": 4 * 2**20, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(control_groups, "_ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "_OWN", tmp_path / "own")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    lines = f"MemTotal: {16 * 2**20} kB\nMemAvailable:   {10 * 2**20} kB\n"
    (tmp_path / "meminfo").write_text(lines)


def test_a_machine_without_a_container() -> None:
    assert (memory_bytes(), free_memory_bytes()) == (16 * GIB, 10 * GIB)


@pytest.mark.parametrize(
    ("limit", "current", "stat", "total", "free"),
    [
        ("max", 6 * GIB, "", 16, 10),
        (8 * GIB, 6 * GIB, "", 8, 2),
        (8 * GIB, 6 * GIB, f"active_file 5\ninactive_file {3 * GIB}\n", 8, 5),
        (8 * GIB, 9 * GIB, "", 8, 0),
        (32 * GIB, 1 * GIB, "", 16, 10),
    ],
)
def test_a_container(
    tmp_path: Path, limit: int | str, current: int, stat: str, total: int, free: int
) -> None:
    for name, text in (("max", limit), ("current", current), ("stat", stat)):
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    assert (memory_bytes(), free_memory_bytes()) == (total * GIB, free * GIB)


def group(folder: Path, limit: int | str, use: int, *, version: int = 2) -> None:
    names = ("max", "current") if version == 2 else ("limit_in_bytes", "usage_in_bytes")
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (limit, use), strict=True):
        (folder / f"memory.{name}").write_text(f"{value}\n")


def test_the_tightest_of_the_groups_around_a_job(tmp_path: Path) -> None:
    """A cluster's job has a group of its own, within others."""
    (tmp_path / "own").write_text("1:cpu:/x\n0::/slurm/job/step\n")
    group(tmp_path, 12 * GIB, 1 * GIB)
    group(tmp_path / "slurm" / "job", 4 * GIB, 3 * GIB)
    group(tmp_path / "slurm" / "job" / "step", "max", 1 * GIB)
    assert (memory_bytes(), free_memory_bytes()) == (4 * GIB, 1 * GIB)


@pytest.mark.parametrize("path", ["/docker/1234", "/"])
def test_the_first_version_of_control_groups(tmp_path: Path, path: str) -> None:
    """A container may not see its own path, but has its limit where the outermost is."""
    (tmp_path / "own").write_text(f"4:cpu,cpuacct:/\n9:memory:{path}\n0::/\n")
    group(tmp_path / "memory", 6 * GIB, 5 * GIB, version=1)
    (tmp_path / "memory" / "memory.stat").write_text(f"total_inactive_file {2 * GIB}\n")
    assert (memory_bytes(), free_memory_bytes()) == (6 * GIB, 3 * GIB)
    group(tmp_path / "memory", 2**63 - 4096, 5 * GIB, version=1)  # none
    assert (memory_bytes(), free_memory_bytes()) == (16 * GIB, 10 * GIB)


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    (tmp_path / "meminfo").unlink()
    assert free_memory_bytes() == 0
