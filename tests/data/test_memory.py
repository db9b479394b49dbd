"""The memory of a process: the machine's, or what its container has left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vcycle.data import memory
from vcycle.data.memory import free_memory_bytes, memory_bytes

GIB = 2**30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """16 GiB, of which 10 are free."""
    sizes = {"SC_PHYS_PAGES": 4 * 2**20, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
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


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    (tmp_path / "meminfo").unlink()
    assert free_memory_bytes() == 0
