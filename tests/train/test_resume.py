"""Runs that go on: where they were, only if they are the same, and when nobody asked them how."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vcycle.config.fields import config_text
from vcycle.config.run import Checkpoint, Evaluation, Model, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.data.manifest import Manifest
from vcycle.devices.processes import Stopped
from vcycle.evaluate import evaluate
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.schedule.plan import Multigrid
from vcycle.train import loop, same_run
from vcycle.train.run import train


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_rows(folder / "metrics.jsonl")]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_checkpoint(folder / "checkpoint.pt")["model"])


def same_weights(one: Path, other: Path) -> bool:
    ours, theirs = weights(one), weights(other)
    return all(torch.equal(ours[name], theirs[name]) for name in ours.keys() | theirs.keys())


def short(config: RunConfig, **changes: Any) -> RunConfig:
    """Four steps."""
    return replace(config, multigrid=Multigrid.off(steps=4, norm_group=4), **changes)


def plain(config: RunConfig) -> RunConfig:
    """Nineteen steps, too, of one shape: where their shapes do not matter."""
    return replace(config, multigrid=Multigrid.off(steps=19, norm_group=4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, "the processes differ: seed is 0 on process 0, 7 on process 1; start all by"),
        ({"manifest": {"num_videos": 1}}, r"manifest\.num_videos is 36 on process 0, 1 on process"),
        ({"threads": 5, "log": "wandb"}, None),
    ],
)
def test_processes_of_other_commands_or_videos_are_refused(
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    message: str | None,
) -> None:
    """Before step 0: what they train would be no run's, or one would wait for the other."""
    monkeypatch.setattr(same_run, "gathered", lambda own, _: [own, {**own, **change}])
    if message is None:
        assert train(short(config), tmp_path / "run")
        return
    with pytest.raises(ValueError, match=message):
        train(short(config), tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Lose power, as far as a process can, when the rate of a step is set."""
    set_rate = loop.set_learning_rate
    asked = 0

    def fail(optimizer: torch.optim.Optimizer, rate: float) -> None:
        nonlocal asked
        if asked == step:
            raise RuntimeError("the machine went away")
        asked += 1
        set_rate(optimizer, rate)

    monkeypatch.setattr(loop, "set_learning_rate", fail)


@pytest.mark.parametrize(
    ("when", "kept"),
    [
        (Checkpoint(minutes=0, steps=5, keep=2), [12, 15]),
        (Checkpoint(minutes=0, steps=5, keep=1), [15]),
        (Checkpoint(minutes=1e-9, keep=3), [14, 15, 16]),
        (Checkpoint(minutes=1e9, keep=3), [6, 12]),  # those of validations
        (Checkpoint(minutes=0, keep=1), [12]),
    ],
)
def test_checkpoints_come_by_steps_and_by_time(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: Checkpoint, kept: Any
) -> None:
    fail_at(monkeypatch, 16)
    with pytest.raises(RuntimeError, match="went away"):
        train(replace(plain(config), checkpoint=when), tmp_path / "run", resume="auto")
    files = sorted((tmp_path / "run" / "checkpoints").glob("*.pt"))
    assert [int(file.stem.removeprefix("step_")) for file in files] == kept


def test_a_run_that_keeps_failing_goes_on_to_the_same_weights(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = plain(config)
    train(config, tmp_path / "whole")
    often = replace(config, checkpoint=Checkpoint(steps=3))
    for after in (1, 2, 7, 4, 5):  # the first leaves no checkpoint, the second begins anew
        fail_at(monkeypatch, after)
        with pytest.raises(RuntimeError, match="went away"):
            train(often, tmp_path / "cut", resume="auto")
        monkeypatch.undo()
    train(often, tmp_path / "cut", resume="auto")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert same_weights(tmp_path / "cut", tmp_path / "whole")
    rows = [read_rows(tmp_path / run / "validation.jsonl") for run in ("whole", "cut")]
    assert [row["top1"] for row in rows[0]] == [row["top1"] for row in rows[1]]


def test_a_damaged_checkpoint_costs_no_more_than_the_steps_since_the_one_before(
    config: RunConfig,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    often = replace(config, checkpoint=Checkpoint(steps=4))
    fail_at(monkeypatch, 10)
    with pytest.raises(RuntimeError, match="went away"):
        train(often, tmp_path / "cut")
    monkeypatch.undo()
    newest = tmp_path / "cut" / "checkpoints" / "step_00000008.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    train(often, tmp_path / "cut", resume="auto")
    assert "it is damaged" in capsys.readouterr().out
    assert losses(tmp_path / "cut") == losses(trained_run)
    assert same_weights(tmp_path / "cut", trained_run)


@pytest.mark.parametrize(("last", "best"), [(0.5, 19), (0.4, 12)])
def test_the_best_validation_keeps_its_checkpoint(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: float, best: int
) -> None:
    """The later of two that are equally good: its rate has fallen further."""
    scores = iter([0.25, 0.5, last])

    def summary(*_: Any, **__: Any) -> dict[str, float]:
        return {"coverage": 1.0, "videos": 12, "top1": next(scores)}

    monkeypatch.setattr(loop, "summary", summary)
    train(replace(plain(config), checkpoint=Checkpoint(keep=1)), tmp_path / "run")
    assert load_checkpoint(tmp_path / "run" / "best.pt")["next_step"] == best
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt")["next_step"] == 19


def test_a_best_checkpoint_that_a_resume_forgets_is_followed_by_the_next_best(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest, which was also the best, is damaged, and is not as good the second time."""
    scores = iter([0.25, 0.9, 0.5, 0.4])

    def summary(*_: Any, **__: Any) -> dict[str, float]:
        return {"coverage": 1.0, "videos": 12, "top1": next(scores)}

    monkeypatch.setattr(loop, "summary", summary)
    config = replace(plain(config), checkpoint=Checkpoint(steps=6, keep=3))
    with monkeypatch.context() as patch:
        fail_at(patch, 14)
        with pytest.raises(RuntimeError, match="went away"):
            train(config, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step_00000012.pt"
    assert newest.samefile(tmp_path / "run" / "best.pt")
    with newest.open("r+b") as file:
        file.seek(newest.stat().st_size // 2)
        file.write(b"damaged")
    with monkeypatch.context() as patch:
        fail_at(patch, 2)
        with pytest.raises(RuntimeError, match="went away"):
            train(config, tmp_path / "run", resume="auto")
    assert not list((tmp_path / "run").glob("best.*"))
    train(config, tmp_path / "run", resume="auto")
    assert load_checkpoint(tmp_path / "run" / "best.pt")["next_step"] == 12


def test_auto_says_that_a_run_is_complete(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(short(config), tmp_path / "run", resume="auto")
    capsys.readouterr()
    assert train(short(config), tmp_path / "run", resume="auto") == result
    assert "complete, nothing is left to train" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        (lambda c: replace(c, seed=1), ["seed is 1 in it, 0 now"]),
        (
            lambda c: replace(c, baseline=replace(c.baseline, batch_size=8)),
            ["baseline.batch_size is 8 in it, 4 now", "plan.clips is 32 in it, 16 now"],
        ),
        (
            lambda c: replace(c, model=Model("resnet3d_tiny", {"width": 8})),
            ["model.options.width is 8 in it, 4 now"],
        ),
        (
            lambda c: replace(c, data=replace(c.data, manifest="fewer")),
            ["manifest.num_videos is 35 in it, 36 now", "manifest.videos_sha256 is "],
        ),
        (
            lambda c: replace(c, data=replace(c.data, manifest="mirrored")),
            ["manifest.details_sha256 is "],
        ),
        (
            lambda c: replace(c, data=replace(c.data, manifest="parts")),
            ["manifest.details_sha256 is "],
        ),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[RunConfig], RunConfig],
    differing: list[str],
) -> None:
    """Even if it lies in the folder of this one."""
    config = short(config)
    fewer = tmp_path / "fewer"
    shutil.copytree(config.data.manifest, fewer)
    manifest = Manifest.read(fewer)
    replace(manifest, videos=manifest.videos[:-1]).write(fewer)
    for name, changed in (("mirrored", {"flip": False}), ("parts", {"start_seconds": 0.1})):
        shutil.copytree(fewer, tmp_path / name)
        videos = (replace(manifest.videos[0], **changed), *manifest.videos[1:])
        replace(manifest, videos=videos).write(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    other = change(config)
    train(other, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "config.yaml").write_text(config_text(config))
    shutil.rmtree(tmp_path / "run" / "manifest")
    with pytest.raises(ValueError, match=r"^checkpoint .*resume with the same, or") as caught:
        train(config, tmp_path / "run", resume="auto")
    message = str(caught.value)
    assert all(each in message for each in differing), message
    assert "\n" not in message


def test_a_checkpoint_of_other_values_is_refused_before_it_is_measured(
    config: RunConfig, tmp_path: Path
) -> None:
    config = short(config, ema_decay=0.5)
    train(config, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    file = tmp_path / "run" / "checkpoint.pt"
    state = torch.load(file, weights_only=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "best.pt").unlink()
    before, average = state["optimizer"], state["ema"]["average"]
    of_other_shapes = {name: value[..., None] for name, value in average.items()}
    huge = torch.zeros(1).expand(2**20, 2**20)
    for changes in (
        *({"optimizer": each} for each in ([1], {}, {**before, "state": {0: {"exp_avg": huge}}})),
        {"optimizer": {**before, "state": {0: {"exp_avg": "x"}}}},
        *({"ema": {**state["ema"], "average": each}} for each in ({}, "x", of_other_shapes)),
        {"ema": None},
        *({"seconds": each} for each in ("x", math.nan, -1.0)),
        *({"next_step": each} for each in (-5, 10**12)),
    ):
        torch.save({**state, **changes}, file)
        with pytest.raises(ValueError, match=r"^checkpoint .*checkpoint\.pt: it is damaged \("):
            train(config, tmp_path / "run", resume=True)


@pytest.mark.parametrize("stops_after", [0, 1, 3])
def test_norm_statistics_are_estimated_anew_after_a_stop_among_their_batches(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops_after: int
) -> None:
    """Of two batches for the weights and two for their average; the steps are safe before."""
    config = short(config, evaluation=Evaluation(times=1, precise_bn=2), ema_decay=0.5)
    train(config, tmp_path / "whole")
    requests: list[float] = []
    estimate, seen = loop.estimate_norms, 0

    def interrupted(*arguments: Any, asked_to_stop: Callable[[], bool]) -> dict[str, str]:
        def asked() -> bool:
            nonlocal seen
            seen += 1
            requests.extend([0.0] * (seen > stops_after))
            return asked_to_stop()

        return estimate(*arguments, asked_to_stop=asked)

    finish = loop.finish_norms
    with monkeypatch.context() as patch:
        patch.setattr(loop, "estimate_norms", interrupted)
        patch.setattr(
            loop,
            "finish_norms",
            lambda run, display, _, **others: finish(run, display, requests, **others),
        )
        with pytest.raises(Stopped, match="after step 4 of 4, before its norm statistics were est"):
            train(config, tmp_path / "run")
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt")["next_step"] == 4
    result = train(config, tmp_path / "run", resume="auto")
    assert result["top1"] == train(config, tmp_path / "whole", resume="auto")["top1"]
    assert same_weights(tmp_path / "run", tmp_path / "whole")
    whole, run = (load_checkpoint(tmp_path / each / "checkpoint.pt") for each in ("whole", "run"))
    torch.testing.assert_close(run["ema"], whole["ema"], rtol=0, atol=0)


def test_a_model_whose_code_changed_is_refused(config: RunConfig, tmp_path: Path) -> None:
    def network(width: int) -> str:
        return (
            "from vcycle.models.tiny import TinyResNet3d\n"
            f"def build(num_classes): return TinyResNet3d(num_classes=num_classes, width={width})\n"
        )

    file = tmp_path / "changing_model.py"
    sys.path.insert(0, str(tmp_path))
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        file.write_text(network(4))
        mine = short(config, model=Model("changing_model:build"))
        train(mine, tmp_path / "run")
        (tmp_path / "run" / "result.json").unlink()
        file.write_text(network(8))
        del sys.modules["changing_model"]
        with pytest.raises(ValueError, match=r"weights\.\S+ is 4x\S* in it, 8x\S* now"):
            train(mine, tmp_path / "run", resume=True)
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(tmp_path))


def test_moved_videos_are_the_same_videos(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = short(config)
    train(config, tmp_path / "run")
    with pytest.raises(ValueError, match="not empty"):
        train(config, tmp_path / "run")
    with pytest.raises(ValueError, match="no checkpoint"):
        train(config, tmp_path / "other", resume=True)
    (tmp_path / "run" / "result.json").unlink()
    moved = tmp_path / "videos"
    shutil.copytree(config.data.manifest, moved)
    other = replace(config, data=replace(config.data, manifest=str(moved)), threads=2)
    train(other, tmp_path / "run", resume=True)
    (tmp_path / "run" / "result.json").unlink()
    table = (moved / "manifest.csv").read_text().splitlines(keepends=True)
    (moved / "manifest.csv").write_text("".join([table[0], *table[2:], table[1]]))
    result = train(other, tmp_path / "run", resume=True)  # with the videos that it kept
    assert "its videos have changed; it goes on with those it had" in capsys.readouterr().out
    assert result["steps"] == 4
    for name in ("result.json", "manifest/manifest.csv"):
        (tmp_path / "run" / name).unlink()
    with pytest.raises(ValueError, match=r"manifest\.videos_sha256 is "):
        train(other, tmp_path / "run", resume=True)
    for file in (tmp_path / "run").glob("**/*.pt"):
        file.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"\.pt: it is damaged"):
        train(config, tmp_path / "run", resume="auto")


def test_auto_goes_on_from_the_best_checkpoint_if_no_other_is_left(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began anew, and wrote over metrics and the best."""
    few = short(config, evaluation=Evaluation(times=2, batch_size=6))  # after steps 2 and 4
    train(few, tmp_path / "whole")
    fail_at(monkeypatch, 3)
    with pytest.raises(RuntimeError, match="went away"):
        train(few, tmp_path / "cut")
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "cut" / "checkpoints")
    for file in (tmp_path / "cut").glob("checkpoint.*"):
        file.unlink()
    train(few, tmp_path / "cut", resume="auto")
    starts = read_rows(tmp_path / "cut" / "starts.jsonl")
    assert [row["step"] for row in starts] == [0, 2]
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert same_weights(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("when", ["in a step", "in a validation"])
def test_a_stop_does_not_wait_for_a_validation_which_is_done_when_the_run_goes_on(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """It may take longer than a scheduler waits."""
    few = short(config, evaluation=Evaluation(times=2, batch_size=2))  # after steps 2 and 4
    train(few, tmp_path / "whole")
    asked: list[str] = []

    def ask(function: Callable[..., Any], at: str) -> Callable[..., Any]:
        def asking(*args: Any, **others: Any) -> Any:
            if (tmp_path / "cut" / "config.yaml").exists():  # the rehearsal is over
                asked.append(at)
                if at == when and asked.count(at) in (2, 3):
                    os.kill(os.getpid(), signal.SIGTERM)
            return function(*args, **others)

        return asking

    monkeypatch.setattr(loop, "set_learning_rate", ask(loop.set_learning_rate, "in a step"))
    monkeypatch.setattr(evaluate, "normalize", ask(evaluate.normalize, "in a validation"))
    with pytest.raises(KeyboardInterrupt, match="stopped after step 2 of 4"):
        train(few, tmp_path / "cut")
    assert asked.count("in a validation") == (2 if when == "in a validation" else 0)
    assert read_rows(tmp_path / "cut" / "validation.jsonl") == []
    if when == "in a validation":  # and again, in the one that a run begins with
        asked.remove("in a validation")
        with pytest.raises(KeyboardInterrupt, match="before its validation ended"):
            train(few, tmp_path / "cut", resume=True)
    monkeypatch.undo()
    train(few, tmp_path / "cut", resume=True)
    rows = [read_rows(tmp_path / run / "validation.jsonl") for run in ("whole", "cut")]
    assert [(row["step"], row["loss"]) for row in rows[0]] == [
        (row["step"], row["loss"]) for row in rows[1]
    ]
    assert same_weights(tmp_path / "cut", tmp_path / "whole")


def test_a_storm_of_sigterm_ends_in_a_checkpoint(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler asks again and again, also while the checkpoint is written."""
    for module, name in (
        (loop, "augment"),
        (loop, "write_checkpoint"),
        (loop, "set_learning_rate"),
    ):
        function = getattr(module, name)

        def storm(*args: Any, _function: Any = function, **others: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            found = _function(*args, **others)
            os.kill(os.getpid(), signal.SIGTERM)
            return found

        monkeypatch.setattr(module, name, storm)
    with pytest.raises(KeyboardInterrupt, match="stopped after step 1 of"):
        train(config, tmp_path / "run")
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt")["next_step"] == 1


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_compiler_that_ctrl_c_ends_is_no_error(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    """A terminal sends it to what the compiler runs, too."""
    failed = type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})

    def compile_in_loop(*_: object) -> None:
        if is_asked:
            os.kill(os.getpid(), signal.SIGINT)
        raise failed("C++ compile error")

    monkeypatch.setattr("vcycle.train.run.loop", compile_in_loop)
    expected = (Stopped, "while the network was compiled") if is_asked else (failed, "C")
    with pytest.raises(expected[0], match=expected[1]):
        train(short(config), tmp_path / "run")


def test_minutes_between_checkpoints_are_minutes_and_begin_anew_with_each(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that is 20 seconds on at each look: after two steps, and after two more."""
    clock = itertools.count(step=20).__next__
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=clock, perf_counter=clock))
    six = replace(config, multigrid=Multigrid.off(steps=6, norm_group=4))
    six = replace(six, evaluation=Evaluation(times=1, batch_size=6))
    train(replace(six, checkpoint=Checkpoint(minutes=0.5, keep=9)), tmp_path / "run")
    files = (tmp_path / "run" / "checkpoints").glob("*.pt")
    assert sorted(int(file.stem.removeprefix("step_")) for file in files) == [2, 4, 6]
