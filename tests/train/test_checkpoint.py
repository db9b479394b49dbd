"""Checkpoints: complete or not there, verified, the last ones and the best kept, and readable."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from vcycle.evaluate.checkpoint import load_checkpoint, read_trained_model
from vcycle.evaluate.trained_model import TrainedModel
from vcycle.models import load_weights
from vcycle.train import checkpoint
from vcycle.train.checkpoint import (
    clear_after,
    has_checkpoint,
    link,
    newest_intact,
    write_checkpoint,
)

TRAINED = TrainedModel(
    name="resnet3d_tiny",
    options={"width": 4},
    classes=("run", "jump"),
    multi_label=False,
    shape="8x32x32",
    stride=2,
    frame_rate=None,
    segments=False,
    short_side=(36, 48),
    mean=0.45,
    std=0.225,
    steps=7,
)


def state(next_step: int, model: torch.nn.Module | None = None) -> dict[str, Any]:
    torch.manual_seed(next_step)
    model = model or torch.nn.Linear(100, 100)
    values = {**TRAINED.to_dict(), "steps": next_step}
    return {"format": 2, "model": model.state_dict(), "next_step": next_step, "trained": values}


def names(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.glob("**/*.*"))


def no_word(line: str) -> None:
    raise AssertionError(line)


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        write_checkpoint(tmp_path, state(step), keep=2)
        if step == 5:
            link(tmp_path / "checkpoint", tmp_path / "best")
    kept = [f"checkpoints/step_000000{step}" for step in (15, 20)]
    files = ["best", "checkpoint", *kept]
    assert names(tmp_path) == [f"{f}{s}" for f in files for s in (".pt", ".safetensors")]
    found = {file: load_checkpoint(tmp_path / f"{file}.pt")["next_step"] for file in files}
    assert list(found.values()) == [5, 20, 15, 20]
    assert newest_intact(tmp_path, say=no_word) == tmp_path / f"{kept[-1]}.pt"


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, state(1), keep=1)
    before = names(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for num_bytes in (20_000, 40_500):  # for the weights; with them, for the checkpoint
            resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
            with pytest.raises(OSError, match=r"step_00000002\."):
                write_checkpoint(tmp_path, state(2), keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert set(before) == {n for n in names(tmp_path) if n.endswith(".pt") or n in before}
    assert load_checkpoint(tmp_path / "checkpoint.pt")["next_step"] == 1
    clear_after(tmp_path, next_step=1, resumed=tmp_path / "checkpoint.pt")
    assert names(tmp_path) == before


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_what_the_disk_does_not_give_back_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    write_checkpoint(tmp_path, state(1), keep=1)

    def damage(path: Path) -> None:
        if suffix in path.name:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)

    monkeypatch.setattr(checkpoint, "_forget_cached", damage)
    with pytest.raises(OSError, match="does not give back what was written"):
        write_checkpoint(tmp_path, state(2), keep=1)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["next_step"] == 1
    assert not (tmp_path / "checkpoints" / "step_00000002.pt").exists()


def test_a_bit_that_flips_is_noticed_and_the_one_before_is_taken(tmp_path: Path) -> None:
    older = write_checkpoint(tmp_path, state(1), keep=2).with_suffix(".pt")
    newer = write_checkpoint(tmp_path, state(2), keep=2).with_suffix(".pt")
    intact = newer.read_bytes()
    weights = intact.index(state(2)["model"]["weight"].numpy().tobytes())
    draw = random.Random(0)
    for _ in range(20):
        content = bytearray(intact)
        content[weights + draw.randrange(40_000)] ^= 1 << draw.randrange(8)
        newer.write_bytes(content)  # and with it the further name checkpoint.pt
        said: list[str] = []
        assert newest_intact(tmp_path, say=said.append) == older
        assert "it is damaged" in said[0]
    older.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"step_00000001\.pt: it is damaged"):
        newest_intact(tmp_path, say=lambda _: None)


def test_a_newest_that_has_no_further_name_yet_is_kept(tmp_path: Path) -> None:
    """As a disk without hard links leaves it that is full by then."""
    write_checkpoint(tmp_path, state(1), keep=2)
    before = {f"checkpoint{suffix}": None for suffix in (".pt", ".safetensors")}
    before = {name: (tmp_path / name).read_bytes() for name in before}
    newest = write_checkpoint(tmp_path, state(2), keep=2).with_suffix(".pt")
    for name, content in before.items():
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(content)
    assert newest_intact(tmp_path, say=no_word) == newest
    clear_after(tmp_path, next_step=2, resumed=newest)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["next_step"] == 2


def test_one_that_the_disk_does_not_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = write_checkpoint(tmp_path, state(1), keep=2).with_suffix(".pt")
    newer = write_checkpoint(tmp_path, state(2), keep=2).with_suffix(".pt")
    read = zipfile.ZipFile.testzip

    def fails(archive: zipfile.ZipFile) -> str | None:
        if archive.filename == str(newer):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(archive)

    monkeypatch.setattr(zipfile.ZipFile, "testzip", fails)
    said: list[str] = []
    assert newest_intact(tmp_path, say=said.append) == older
    assert "step_00000002.pt: it cannot be read (Input/output error)" in said[0]


def test_one_that_torch_does_not_load_is_passed_over(tmp_path: Path) -> None:
    """Python finds every record by the archive's directory; torch reads their own headers too."""
    older = write_checkpoint(tmp_path, state(1), keep=2).with_suffix(".pt")
    newer = write_checkpoint(tmp_path, state(2), keep=2).with_suffix(".pt")
    content = bytearray(newer.read_bytes())
    with zipfile.ZipFile(newer) as archive:
        record = max(archive.infolist(), key=lambda each: each.file_size)
    content[record.header_offset] ^= 1
    newer.write_bytes(content)
    said: list[str] = []
    assert newest_intact(tmp_path, say=said.append) == older
    assert "it is damaged" in said[0]


@pytest.mark.parametrize("damaged", [False, True])
def test_the_best_is_the_last_resort(tmp_path: Path, damaged: bool) -> None:
    for step in (5, 10):
        write_checkpoint(tmp_path, state(step), keep=1)
        if step == 5:
            link(tmp_path / "checkpoint", tmp_path / "best")
    shutil.rmtree(tmp_path / "checkpoints")
    assert newest_intact(tmp_path, say=no_word) == tmp_path / "checkpoint.pt"
    for suffix in (".pt", ".safetensors"):
        (tmp_path / f"checkpoint{suffix}").unlink()
    if damaged:
        (tmp_path / "checkpoint.pt").write_bytes(b"damaged")
    assert has_checkpoint(tmp_path)
    said: list[str] = []
    assert newest_intact(tmp_path, say=said.append) == tmp_path / "best.pt"
    assert ["checkpoint.pt: it is damaged" in each for each in said] == [True] * damaged
    clear_after(tmp_path, next_step=5, resumed=tmp_path / "best.pt")
    for name in ("checkpoint", "best"):
        assert load_checkpoint(tmp_path / f"{name}.pt")["next_step"] == 5


def test_what_a_kill_left_is_cleared(tmp_path: Path) -> None:
    for step in (5, 10):
        write_checkpoint(tmp_path, state(step), keep=2)
    write_checkpoint(tmp_path, state(15), keep=3)
    left = ("checkpoints/.step_00000020.pt.77", "checkpoints/step_00000020.safetensors")
    for name in (*left, ".checkpoint.pt.77"):
        (tmp_path / name).touch()
    clear_after(tmp_path, next_step=10, resumed=tmp_path / "checkpoints" / "step_00000010.pt")
    steps = [f"checkpoints/step_000000{step}" for step in ("05", "10")]
    assert names(tmp_path) == [
        f"{f}{s}" for f in ("checkpoint", *steps) for s in (".pt", ".safetensors")
    ]
    assert load_checkpoint(tmp_path / "checkpoint.pt")["next_step"] == 10


def test_a_disk_without_hard_links_has_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "link", refuse)
    stem = write_checkpoint(tmp_path, state(1), keep=1)
    copies = [tmp_path / f"checkpoint{suffix}" for suffix in (".pt", ".safetensors")]
    for copy in copies:
        assert copy.read_bytes() == stem.with_suffix(copy.suffix).read_bytes()
        assert not copy.samefile(stem.with_suffix(copy.suffix))


class Odd(torch.nn.Module):
    """Weights as models of others have them: tied, channels last, a scalar, more than tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv3d(2, 3, 3).to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.tensor(3))

    def get_extra_state(self) -> Any:
        return {"note": "kept"}


def test_weights_lie_beside_as_safetensors_with_what_predicting_takes(tmp_path: Path) -> None:
    model = Odd()
    write_checkpoint(tmp_path, state(7, model), keep=1)
    found = safetensors.torch.load_file(tmp_path / "checkpoint.safetensors")
    assert found.keys() == model.state_dict().keys() - {"_extra_state"}
    assert all(torch.equal(found[name], model.state_dict()[name]) for name in found)
    for name in ("checkpoint.safetensors", "checkpoint.pt"):
        assert read_trained_model(tmp_path / name) == TRAINED
        shutil.copy(tmp_path / name, tmp_path / f"moved-{name}")
        assert read_trained_model(tmp_path / f"moved-{name}") == TRAINED
    other = torch.nn.Linear(4, 4)
    safetensors.torch.save_file(other.state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="not written by vcycle train"):
        read_trained_model(tmp_path / "other.safetensors")
    write_checkpoint(tmp_path, state(8, other), keep=1)
    loaded = torch.nn.Linear(4, 4)
    assert "not in the file 0" in str(
        load_weights(loaded, str(tmp_path / "checkpoint.safetensors"))
    )
    assert torch.equal(loaded.weight, other.weight)


@pytest.mark.parametrize("changes", [{"model": None}, {"ema": 3}, {"ema": {"average": [1]}}])
def test_one_without_weights_is_damaged(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = tmp_path / "checkpoint.pt"
    torch.save({**state(5), **changes}, file)
    with pytest.raises(ValueError, match=r"it is damaged \(it has no weights\); give another"):
        load_checkpoint(file)


def test_a_damaged_best_checkpoint_takes_no_weights_with_it(tmp_path: Path) -> None:
    """Its own weights may be intact, and are what is deployed."""
    write_checkpoint(tmp_path, state(5), keep=1)
    link(tmp_path / "checkpoint", tmp_path / "best")
    newest = write_checkpoint(tmp_path, state(10), keep=1).with_suffix(".pt")
    (tmp_path / "best.pt").unlink()
    (tmp_path / "best.pt").write_bytes(b"damaged")
    clear_after(tmp_path, next_step=10, resumed=newest)
    assert {"best.pt", "best.safetensors"} <= set(names(tmp_path))


def test_what_is_written_is_on_the_disk_before_older_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, state(1), keep=1)
    synced: list[str] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        assert (tmp_path / "checkpoints" / "step_00000001.pt").exists()
        synced.append(Path(f"/proc/self/fd/{file}").readlink().name)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    write_checkpoint(tmp_path, state(2), keep=1)
    of_each = (".step_00000002.safetensors.", ".step_00000002.pt.")
    assert all(any(name.startswith(each) for name in synced) for each in of_each)
