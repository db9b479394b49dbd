"""The scripts for a GPU, on the CPU: what they print, at the least size."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from gpu import steps
from tests.encode import encode, numbered_frames
from vcycle.config.recipes import recipe
from vcycle.data.workers.lifetime import process_context
from vcycle.schedule.shape import Shape

Run: TypeAlias = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a script with arguments; returns what it printed."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # as it was, afterwards

    def run(script: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        assert not import_module(f"gpu.{script}").main()
        return capsys.readouterr().out

    return run


def rows(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


def test_sub_batch_norm_launches_little_more_than_plain_norms(run: Run) -> None:
    counts = json.loads(run("launches"))
    assert counts["ratio"] == counts["grouped"] / counts["plain"] <= 1.5
    # 110 norm layers: five kernels each, and the commit of all of them.
    assert set(counts["of_sub_batch_norm"].values()) == {110}
    plain_norms = 3 * 110  # forward, backward, and the number of batches
    commit = counts["grouped"] - (counts["plain"] - plain_norms) - 5 * 110
    assert 0 < commit < 20
    kept = Path(__file__).parents[2] / "docs" / "results" / "launches.json"
    assert counts == json.loads(kept.read_text())  # of which the page is made


def test_the_comparison_with_the_cpu_finds_no_difference(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ((Shape(2, 32, 32), 8, 4), (Shape(4, 32, 32), 4, 4), (Shape(4, 48, 48), 4, None))
    monkeypatch.setattr("gpu.equality.STEPS", steps)
    compared = rows(run("equality", "--device", "cpu"))
    assert all(row["equal"] and 0 <= row["error"] <= row["allowed"] for row in compared)
    kinds = {"outputs", "gradients", "losses", "statistics"}
    of_model = [row for row in compared if row["what"] == "resnet3d_tiny"]
    for precision in ("float32", "bfloat16"):
        assert {row["compared"] for row in of_model if row["precision"] == precision} == kinds
    assert max(row["error"] for row in of_model) > 0


def test_every_mini_batch_of_a_plan_is_timed_once(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "steps.jsonl"
    size = (str(out), "--recipes", "demo", "demo", "--max-clips", "1", "--repeats", "1")
    timed = rows(run("steps", *size))
    shapes = [str(each.shape) for each in recipe("demo").plan().mini_batches()]
    assert [row["shape"] for row in timed] == list(dict.fromkeys(shapes))
    assert rows(out.read_text()) == timed
    for row in timed:
        assert row["clips"] == 1
        parts = [row[f"{name}_seconds"] for name in ("forward", "backward", "optimizer")]
        assert min(parts) > 0
        assert sum(parts) == pytest.approx(row["seconds"])
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-2]))
    assert [row["shape"] for row in rows(run("steps", *size))] == shapes[-2:]
    assert rows(run("steps", *size)) == []
    plain = rows(run("steps", *size, "--norms", "plain", "--minutes", "0"))
    assert [(row["norms"], row["norm_group"]) for row in plain] == [("plain", None)]
    out.write_text("")
    some = rows(run("steps", *size, "--shapes", shapes[-1]))
    assert {row["shape"] for row in some} == {shapes[-1]}
    with pytest.raises(SystemExit):
        run("steps", *size, "--shapes", "9x9x9")


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_kinds_of_a_lot_are_timed_in_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "steps.jsonl"
    size = (str(out), "--recipes", "demo", "--max-clips", "1", "--repeats", "1", "--jobs", "2")
    plan = recipe("demo").plan()
    first, second, *_ = dict.fromkeys(str(each.shape) for each in plan.mini_batches())
    # A spawned process, as CUDA needs, is sent it and imports torch anew; here they are forked.
    timing = steps.Timing({}, recipe("demo"), plan.mini_batches()[0], clips=1)
    assert pickle.loads(pickle.dumps(timing)) == timing
    context = process_context()
    monkeypatch.setattr(steps.multiprocessing, "get_context", {"spawn": context}.get)
    run("steps", *size, "--shapes", first, second)
    timed = rows(out.read_text())
    assert sorted(row["shape"] for row in timed) == sorted([first, second])
    assert all(row["clips"] == 1 and row["seconds"] > 0 for row in timed)
    run("steps", *size, "--shapes", first, second)
    assert rows(out.read_text()) == timed
    nowhere = str(tmp_path / "none" / "steps.jsonl")
    with pytest.raises(SystemExit, match="1 of 1 kinds failed"):
        run("steps", nowhere, *size[1:], "--shapes", first)


def test_a_decoder_is_compared_with_pyav_and_timed(run: Run, tmp_path: Path) -> None:
    encode(tmp_path / "v.mp4", numbered_frames(40))
    size = ("--clips", "4", "--batch-size", "2", "--workers", "0", "1", "--shapes", "4x32x32")
    timed = rows(run("decoding", str(tmp_path), "--decoders", "pyav", *size))
    kinds = [(row["source"], row["decoder"], row["shape"], row["workers"]) for row in timed]
    sources = ("raw", "prepared")
    assert kinds == [(each, "pyav", "4x32x32", workers) for each in sources for workers in (0, 1)]
    for row in timed:
        assert row["difference"] == {"mean": 0, "greatest": 0}
        assert row["clips_per_second"] > 0
