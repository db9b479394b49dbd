"""TensorBoard's file read back, and Weights & Biases offline if it is installed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import (
    SCALARS,
    EventAccumulator,
    ScalarEvent,
)

from vcycle.cli.main import main
from vcycle.config.fields import config_from, typed
from vcycle.config.run import Checkpoint, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.train import live_logs
from vcycle.train.checkpoint import clear_after
from vcycle.train.run import train
from vcycle.train.run_folder import config_text


def events_of(run: Path, *, purge: bool = True) -> Callable[[str], list[ScalarEvent]]:
    """The points of a series, as TensorBoard reads them."""
    found = EventAccumulator(
        str(run / "tensorboard"), size_guidance={SCALARS: 0}, purge_orphaned_data=purge
    )
    found.Reload()
    return found.Scalars


def test_tensorboard_shows_the_rows_over_steps_clips_and_seconds(
    config: RunConfig, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(replace(config, log=("tensorboard",)), run)
    rows, validations = (read_rows(run / f"{each}.jsonl") for each in ("metrics", "validation"))
    points = events_of(run)
    for name in ("loss", "learning_rate", "clips_per_second", "waiting_seconds"):
        assert [each.step for each in points(name)] == [row["step"] for row in rows]
        assert [each.value for each in points(name)] == pytest.approx([row[name] for row in rows])
    shapes = [
        "x".join(f"{each.value:.0f}" for each in sizes)
        for sizes in zip(*map(points, ("plan/frames", "plan/height", "plan/width")), strict=True)
    ]
    assert shapes == [row["shape"] for row in rows]
    assert len(set(shapes)) > 3
    batches = [each.value for each in points("plan/batch_size")]
    assert batches == [row["batch_size"] for row in rows]
    totals = [sum(batches[: n + 1]) for n in range(len(batches))]
    assert [each.step for each in points("over_clips/loss")] == totals
    began = points("loss")[0].wall_time - rows[0]["seconds"]
    seconds = [each.wall_time - began for each in points("loss")]
    assert seconds == pytest.approx([row["seconds"] for row in rows], abs=0.01)
    scores = [each.value for each in points("validation/top1")]
    assert scores == pytest.approx([row["top1"] for row in validations])
    clips = [totals[row["step"]] for row in validations]
    assert [each.step for each in points("over_clips/validation/top1")] == clips


def killed_after(config: RunConfig, run: Path, *, step: int) -> None:
    """Let a complete run be one whose newest checkpoint is that after ``step`` steps."""
    train(config, run)
    (run / "result.json").unlink()
    clear_after(run, next_step=step, resumed=run / "checkpoints" / f"step_{step:08d}.pt")


def test_a_run_that_goes_on_doubles_no_point(config: RunConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = replace(config, log=("tensorboard",), checkpoint=Checkpoint(steps=1, keep=100))
    killed_after(config, run, step=8)
    (run / "tensorboard" / "notes.txt").write_text("kept")
    train(config, run, resume=True)
    rows = read_rows(run / "metrics.jsonl")
    for purge in (True, False):
        points = events_of(run, purge=purge)
        assert [each.step for each in points("loss")] == [row["step"] for row in rows]
        expected = [row["step"] for row in read_rows(run / "validation.jsonl")]
        assert [each.step for each in points("validation/loss")] == expected
    assert (run / "tensorboard" / "notes.txt").exists()


def test_no_log_is_written_unless_asked(trained_run: Path) -> None:
    assert not (trained_run / "tensorboard").exists()
    assert not (trained_run / "wandb").exists()


def test_a_missing_package_is_one_line_before_anything_is_done(
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(live_logs, "find_spec", lambda name: None)
    (tmp_path / "config.yaml").write_text(config_text(config))
    words = ["train", "--config", str(tmp_path / "config.yaml"), "--folder", str(tmp_path / "run")]
    for name in ("tensorboard", "wandb"):
        assert main([*words, "--log", name]) == 2
        error = capsys.readouterr().err
        assert f"log {name}: it is not installed; pip install 'vcycle[{name}]'" in error
        assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
    assert main([*words, "--log", "mlflow"]) == 2
    assert "--log mlflow: give tensorboard or wandb" in capsys.readouterr().err


def test_logs_are_a_list_in_a_file_and_words_with_commas_as_a_flag(config: RunConfig) -> None:
    for text in ("tensorboard,wandb", "[tensorboard, wandb]", ["tensorboard", "wandb"]):
        assert config_from(asdict(config), {"log": text}).log == ("tensorboard", "wandb")
    assert typed(tuple[int, int], "36,48", "--data.short_side") == (36, 48)


def test_weights_and_biases_offline(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    config = replace(config, log=("wandb",), checkpoint=Checkpoint(steps=1, keep=100))
    killed_after(config, run, step=8)
    first = sorted(each.name for each in (run / "wandb").glob("offline-run-*"))
    train(config, run, resume=True)
    second = sorted(each.name for each in (run / "wandb").glob("offline-run-*"))
    assert len(first) == len(second) == 1
    assert first != second
    steps = history_steps(next((run / "wandb" / second[0]).glob("run-*.wandb")))
    assert steps == [row["step"] for row in read_rows(run / "metrics.jsonl")]


def history_steps(file: Path) -> list[int]:
    """The steps of an offline run's history, in order; its file is a LevelDB log of messages."""
    from wandb.proto import wandb_internal_pb2

    data, position, message, steps = file.read_bytes(), 7, b"", []
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:  # no header fits into what is left of a block
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        message += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind not in (1, 4):  # whole, or the last part
            continue
        record = wandb_internal_pb2.Record()
        record.ParseFromString(message)
        message = b""
        if record.WhichOneof("record_type") == "history":
            steps.append(record.history.step.num)
    return steps
