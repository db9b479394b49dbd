"""Launches that lack what each process must know, or a GPU for each: one line."""

from __future__ import annotations

import pytest
import torch

from vcycle.config.recipes import recipe
from vcycle.devices.launch import make_fabric

PLACE = {"WORLD_SIZE": "4", "RANK": "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PLACE, "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])
def test_a_place_that_is_not_whole(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLACE.items():
        if name != missing:
            monkeypatch.setenv(name, value)
    message = f"^WORLD_SIZE 4: {missing} not set beside it; start with torchrun or srun"
    with pytest.raises(ValueError, match=message):
        make_fabric(recipe("demo"))


def test_fewer_gpus_than_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLACE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"^LOCAL_WORLD_SIZE 4: each process needs a GPU of its"):
        make_fabric(recipe("demo"))


def test_machines_with_unequal_numbers_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**PLACE, "WORLD_SIZE": "7"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"^7 processes, 4 of them here: every machine needs as"):
        make_fabric(recipe("demo"))
