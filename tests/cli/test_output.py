"""Commands whose output nobody reads any more: they do their work, and exit as otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tests.conftest import small_run
from vcycle.cli.main import main
from vcycle.config.fields import config_text
from vcycle.data.json_lines import read_rows


@pytest.fixture(params=["a pipe without a reader", "a full disk"])
def dead(request: pytest.FixtureRequest) -> Iterator[TextIO]:
    """A stream whose every flush fails."""
    if request.param == "a full disk":
        file = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, file = os.pipe()
        os.close(reader)
    with os.fdopen(file, "w") as stream:
        yield stream


def test_a_run_goes_on_without_output(
    dead: TextIO, synthetic_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_run(synthetic_videos)
    (tmp_path / "config.yaml").write_text(config_text(config))
    monkeypatch.setattr(sys, "stdout", dead)
    monkeypatch.setattr(sys, "stderr", dead)
    run = tmp_path / "run"
    assert main(["train", "--config", str(tmp_path / "config.yaml"), "--folder", str(run)]) == 0
    assert (run / "result.json").exists()
    assert len(read_rows(run / "metrics.jsonl")) == len(config.plan())
    assert sys.stdout is dead
    dead.flush()  # as Python does when it exits: nothing is left that could fail


def test_an_error_of_a_command_stays_its_exit_code(
    dead: TextIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", dead)
    assert main(["train", "demo", "--threads", "-1"]) == 2
    assert main(["train", "nowhere/videos"]) == 2


def test_a_result_that_a_full_disk_does_not_take_is_an_error(
    dead: TextIO,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That nobody reads on is none: ``vcycle plan | head``."""
    is_full = request.node.callspec.params["dead"] == "a full disk"
    monkeypatch.setattr(sys, "stdout", dead)
    assert main(["plan", "demo", "--json"]) == (2 if is_full else 0)
    full = "vcycle: standard output: No space left on device\n"
    assert capsys.readouterr().err == (full if is_full else "")


def test_a_broken_pipe_of_the_run_itself_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as that to a worker: it is not that of ``vcycle plan | head``."""

    def lose_a_worker(_options: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("vcycle.cli.train.run_train_command", lose_a_worker)
    assert main(["train", "demo"]) == 2
    assert "Broken pipe" in capsys.readouterr().err


def test_output_that_is_closed_from_the_beginning_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["plan", "demo"]) == 0
