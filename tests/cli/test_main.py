"""The command line: what it prints when all is well, and one line and exit code 2 otherwise."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch

import vcycle
from tests.cli.test_first_hour import interrupt_after
from tests.processes import PATIENCE
from vcycle.cli import models
from vcycle.cli.main import main
from vcycle.data.json_lines import read_rows
from vcycle.data.manifest import Manifest
from vcycle.demo.videos import write_videos
from vcycle.models import count


def test_synth_writes_a_manifest_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "videos"
    code = main(["data", "synth", str(folder), "--train-videos", "3", "--val-videos", "2"])
    assert code == 0
    manifest = Manifest.read(folder)
    assert len(manifest.split("train")) == 3
    assert len(manifest.split("val")) == 2
    assert all((folder / video.path).stat().st_size > 0 for video in manifest.videos)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "demo"),
        (["dmeo"], "demo"),
        (["demo", "--quack"], "--quack"),
        (["data", "synth"], "folder"),
        (["data", "synth", "/dev/null/x"], "/dev/null/x"),
        (["data", "synth", "/tmp/v", "--train-videos", "none"], "--train-videos"),
        (["data", "synth", "/tmp/v", "--val-videos", "0"], "val_videos 0: give at least 1"),
        (["data", "index", "folder", "/no/such/folder"], "/no/such/folder: no such folder"),
        (["data", "prepare", "/no/such/folder", "/tmp/out"], "/no/such/folder"),
        (["data", "prepare", "/no/such", "/tmp/out", "--preset", "quick"], "preset 'quick'"),
        (["train", "demo"], "give --data FILE"),
        (["train", "demoo"], "did you mean demo"),
        (["models", "slow_r50"], "slow_r50: one word too many; vcycle models --help"),
        (["train", "demo", "--threads", "-1"], "threads -1"),
        (["train", "demo", "--evaluation.batch_size", "0"], "evaluation.batch_size 0"),
        (
            ["plan", "scratch", "--optimizer.name", "adma"],
            "give sgd or adamw or muon or lars or lamb",
        ),
        (
            ["plan", "k400-slowfast-r50", "--optimizer.name", "adamw"],
            "0.8 is a rate for sgd; give adamw its own with --lr, and --multigrid.rate_exponent",
        ),
        (["plan", "k400-slowfast-r50", "--optimizer.name", "lars"], "give lars its own with --lr"),
        (["train", "demo", "--optimizer.momentum", "2"], "optimizer.momentum 2"),
        (["eval", "/no/such/run"], "/no/such/run"),
        (["plan", "demo", "--multigrid.norm_group", "3"], "norm_group 3"),
        (["bench", "loader", "/no/such/folder"], "/no/such/folder: no such folder"),
        (["train", ""], "train: an empty word after it; give a value, or leave it out"),
        (["plan", "demo", "--weights", ""], "--weights: an empty word after it"),
        (["train", "demo", "--data=", "--folder", "x"], "--data=: an empty word after it"),
        (["train", "demo", "--data=/no/such=", "--folder", "x"], "/no/such=: not found"),
        (["plan", "demo", "--shape", "8x9600x9600"], "a clip of 737,280,000 pixels; give"),
        (["plan", "demo", "--data.short_side", "[9,9]"], "short_side (9, 9): give an increasing"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert error.startswith("vcycle: ")


def test_memory_that_torch_does_not_get_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "run_models_command", lambda _: torch.empty(2**60))
    assert main(["models"]) == 2
    error = capfd.readouterr().err
    assert error.startswith("vcycle: memory is full; ask for less at once (")
    assert error.count("\n") == 1
    monkeypatch.setattr(models, "run_models_command", lambda _: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        main(["models"])


def test_whatever_ends_one_of_several_processes_is_told_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("vcycle.devices.process_group.leave_word", told.append)
    monkeypatch.setattr(models, "run_models_command", lambda _: torch.zeros(2) @ torch.zeros(3))
    with pytest.raises(RuntimeError):
        main(["models"])
    monkeypatch.setenv("VCYCLE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="nowhere"):
        main(["eval", "nowhere"])
    first, second = told
    assert first.startswith("RuntimeError: inconsistent tensor size")
    assert second.startswith("run folder nowhere: not found")


@pytest.mark.parametrize("rest", [[], ["--data", "/no/such/file"]])
def test_training_without_videos_is_refused_before_pytorch_starts(rest: list[str]) -> None:
    code = f"""import sys; sys.modules["torch"] = None
from vcycle.cli.main import main
sys.exit(main({["train", "demo", *rest]}))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "vcycle data index" in done.stderr


@pytest.mark.parametrize("decoder", ["torchcodec", "nvdec"])
def test_a_decoder_that_does_not_work_is_refused_before_step_0(
    synthetic_videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    decoder: str,
) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    folder = tmp_path / "run"
    arguments = ["--data", str(synthetic_videos), "--folder", str(folder)]
    assert main(["train", "demo", *arguments, "--data.decoder", decoder]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"vcycle: decoder '{decoder}'")
    assert "give 'pyav'" in error or "'pyav' or 'torchcodec' elsewhere" in error
    assert error.count("\n") == 1
    assert not (folder / "metrics.jsonl").exists()


def test_train_eval_and_resume(
    synthetic_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    fields = {
        "baseline.shape.frames": 4,
        "baseline.shape.height": 32,
        "baseline.shape.width": 32,
        "baseline.steps": 40,
        "baseline.stage_ends": "[20,30]",
        "baseline.num_videos": 24,
        "baseline.learning_rate.warmup_steps": 2,
        "data.num_workers": 0,
        "data.short_side": "[36,42]",
        "multigrid.epoch_factor": 2,
    }
    small = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    data = ["--data", str(synthetic_videos)]
    assert main(["train", "demo", "--folder", folder, *small, *data]) == 0
    second = str(tmp_path / "second")
    weights = [
        "--weights",
        str(tmp_path / "run" / "checkpoint.pt"),
        "--model=vcycle.models.tiny:TinyResNet3d",
    ]
    assert main(["train", "demo", "--folder", second, *small, *data, *weights]) == 0
    assert "not in the file 0" in capsys.readouterr().out
    assert main(["eval", folder, "--json", "--evaluation.num_clips", "2"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["views"] == 2
    assert scores["videos"] == 12
    assert scores["coverage"] == 1
    assert main(["eval", folder, "--split", "train"]) == 0
    assert "on 24 videos of train" in capsys.readouterr().out
    assert main(["eval", second, "--model", "slow_r50"]) == 2
    assert "; give --model vcycle.models.tiny:TinyResNet3d" in capsys.readouterr().err
    words = ["train", *data[1:], "--weights", str(tmp_path / "second" / "best.safetensors")]
    assert main([*words, "--dry-run"]) == 2
    assert "; give --model vcycle.models.tiny:TinyResNet3d" in capsys.readouterr().err
    assert main(["eval", second]) == 2
    assert "TinyResNet3d, which is code of its own; if you know it, give" in capsys.readouterr().err
    assert main(["eval", folder, second, "--trust-code"]) == 0
    both = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in both] == [folder, second]
    assert main(["eval", folder, second, "--json", "--trust-code"]) == 0
    assert [row["folder"] for row in json.loads(capsys.readouterr().out)] == [folder, second]
    assert main(["eval", folder, str(tmp_path / "nowhere")]) == 2
    assert "nowhere: not found" in capsys.readouterr().err
    assert main(["eval", folder, "--model", "slow_r50"]) == 2
    assert "leave --model out" in capsys.readouterr().err
    assert main(["train", "demo", "--folder", folder, *small, *data, "--resume"]) == 0
    assert capsys.readouterr().out == f"{folder}: complete, nothing is left to train\n"
    assert main(["train", "demo", "--folder", folder, *small, *data, "--resume", "auto"]) == 0
    assert capsys.readouterr().out == f"{folder}: complete, nothing is left to train\n"
    assert main(["train", "demo", "--folder", folder, *small, *data, "--resume", "soon"]) == 2
    assert "--resume soon: it names the run; leave out" in capsys.readouterr().err
    assert main(["eval", folder, "--json", "--best"]) == 0
    best = json.loads(capsys.readouterr().out)
    rows = read_rows(tmp_path / "run" / "validation.jsonl")
    assert best["top1"] == max(row["top1"] for row in rows)
    assert main(["train", "demo", "--folder", folder, *small, *data]) == 0  # as does the same again
    assert capsys.readouterr().out == f"{folder}: complete, nothing is left to train\n"
    assert main(["train", "demo", "--folder", folder, *small, *data, "--seed", "3"]) == 2
    assert "seed is 0 in it, 3 now" in capsys.readouterr().err


def test_models_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = cache(lambda shape, names: count_costs(shape, names=names))
    count_costs = count.model_costs
    monkeypatch.setattr(
        count, "model_costs", lambda shape, *, names: once(shape, tuple(names))
    )  # counted once for both
    assert main(["models", "--shape", "8x64", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["slowfast_r50"]["parameters"] == 34_566_488
    assert "slowfast_r50_8x8" in rows["slowfast_r50"]["aliases"]
    assert "slowfast_r50_8x8" not in rows
    assert main(["models", "--shape", "8x64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  also slow_r50_4x16, slow_r50_8x8" in lines
    assert main(["models", "--shape", "8xx"]) == 2


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0
    assert capsys.readouterr().out == f"vcycle {vcycle.__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", vcycle.__version__)


def test_the_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--folder", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("versions      python 3")
    assert {line.split("  ")[0] for line in lines} >= {"pyav", "nvdec", "memory", "disk", "GPUs"}
    assert main(["doctor", "--json", "--folder", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["cpus"] >= 1
    assert main(["doctor", "--folder", str(tmp_path / "x")]) == 2


def test_index_and_prepare_a_folder_of_videos(
    synthetic_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, label in (("00000", "squares"), ("00001", "squares"), ("00004", "rings")):
        (tmp_path / "mine" / label).mkdir(parents=True, exist_ok=True)
        copy = tmp_path / "mine" / label / f"{name}.mp4"
        copy.write_bytes((synthetic_videos / "train" / f"{name}.mp4").read_bytes())
    (tmp_path / "mine" / "rings" / "bad.mp4").write_bytes(b"not a video")
    assert main(["data", "index", "folder", str(tmp_path / "mine"), "--workers", "1"]) == 0
    assert "3 of 4 videos" in capsys.readouterr().out
    out = str(tmp_path / "fast")
    command = ["data", "prepare", str(tmp_path / "mine"), out, "--short-side", "64"]
    assert main([*command, "--workers", "1"]) == 0
    assert "3 videos prepared" in capsys.readouterr().out
    assert {min(v.width, v.height) for v in Manifest.read(out).videos} == {64}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.splitlines(keepends=True)[0], "lists no video"),
        (lambda table: table.replace("val/00000.mp4,0,", "val/00000.mp4,99,"), "label 99"),
        (lambda table: table.replace("val/00000.mp4", "../00000.mp4"), "leaves the manifest"),
        (lambda table: "", "no column path"),
    ],
)
def test_a_wrong_manifest_is_one_line(
    change: Callable[[str], str],
    message: str,
    synthetic_videos: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    table = (synthetic_videos / "manifest.csv").read_text()
    assert change(table) != table
    (tmp_path / "manifest.csv").write_text(change(table))
    (tmp_path / "classes.txt").write_text((synthetic_videos / "classes.txt").read_text())
    folder = str(tmp_path / "run")
    assert main(["train", "demo", "--data", str(tmp_path), "--folder", folder]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_ctrl_c_leaves_a_readable_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "demo"
    few = partial(write_videos, train_videos=24, val_videos=12, num_workers=1)
    monkeypatch.setattr("vcycle.demo.comparison.write_videos", lambda videos, **_: few(videos))
    interrupt_after(2, monkeypatch)
    assert main(["demo", "--quick", "--folder", str(folder)]) == 130
    error = capsys.readouterr().err
    last = error.strip().splitlines()[-1]
    assert last.startswith("vcycle: stopped after step")
    assert last.endswith("; the same command goes on")
    assert "Traceback" not in error
    rows = read_rows(folder / "baseline" / "metrics.jsonl")
    assert len(rows) > 2
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert (folder / "baseline" / "checkpoint.pt").is_file()
    assert (folder / "baseline" / "config.yaml").is_file()


@pytest.mark.parametrize(("flags", "code"), [(["--version"], 0), (["plan", "--what"], 2)])
def test_of_several_processes_flags_that_end_a_command_end_it_alike(
    flags: list[str], code: int
) -> None:
    command = [sys.executable, "-m", "vcycle", *flags]
    done = subprocess.run(
        command, env={**os.environ, "WORLD_SIZE": "1"}, capture_output=True, text=True
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_the_help_of_eval_lists_no_flags_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    text = capsys.readouterr().out
    assert "--precision" in text
    for flag in ("--lr", "--epoch-factor", "--log", "--freeze", "--weights", "--batch-size"):
        assert f"{flag} " not in text


@pytest.mark.parametrize(
    ("before", "number", "code", "said"),
    [
        ("cli.make_parser = wait", signal.SIGTERM, 130, "vcycle: terminated\n"),
        ("cli.make_parser = wait", signal.SIGINT, 130, "vcycle: interrupted\n"),
        ("cli.main = lambda: 0; atexit.register(wait)", signal.SIGTERM, -signal.SIGTERM, ""),
        ("cli.main = lambda: 0; atexit.register(wait)", signal.SIGINT, -signal.SIGINT, ""),
        ("cli.main = lambda: ignore() or 130; atexit.register(wait, 1)", signal.SIGTERM, 130, ""),
        ("ignore(); cli.main = lambda: wait(1) or 7", signal.SIGTERM, 7, ""),
    ],
)
def test_a_signal_ends_a_command_without_a_traceback(
    before: str, number: int, code: int, said: str
) -> None:
    """While it runs, and while Python exits; one that is ignored stays so."""
    program = (
        "import atexit, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job of a shell ignores it
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "import vcycle.cli.main as cli\n"
        "from vcycle.__main__ import run\n"
        "def wait(seconds=600): print('waits', flush=True); time.sleep(seconds)\n"
        "def ignore(): signal.signal(signal.SIGTERM, signal.SIG_IGN) and None\n"
        f"{before}\n"
        "run()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "waits\n"
            process.send_signal(number)
            _, error = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, error) == (code, said)


def test_the_home_folder_is_found_where_shells_leave_its_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for words in (["plan", "scratch", "--data=~/none"], ["eval", "~/none"]):
        assert main(words) == 2
        assert str(tmp_path / "none") in capsys.readouterr().err
    assert main(["plan", "demo", "--plot=~/plan.svg"]) == 0
    assert (tmp_path / "plan.svg").is_file()
