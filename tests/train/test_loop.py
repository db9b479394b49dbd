"""Whole runs on real files: what they leave, resuming, stopping, micro-batches, bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vcycle.config.fields import config_text
from vcycle.config.run import Evaluation, Model, Optimizer, RunConfig
from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import Grid
from vcycle.data.json_lines import read_rows
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video
from vcycle.devices.fabric import Fabric
from vcycle.devices.processes import Stopped
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.evaluate.metrics import VideoScores
from vcycle.models import convert_batch_norm, defer_statistics, freeze
from vcycle.models.tiny import TinyResNet3d
from vcycle.schedule.cycles import LongCycle
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape, ShapeRule
from vcycle.train import loop, start, stop
from vcycle.train.gradients import Pieces
from vcycle.train.run import train
from vcycle.train.run_folder import RunFolder
from vcycle.train.start import check_batch_division


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_checkpoint(folder / "checkpoint.pt")["model"])


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_rows(folder / "metrics.jsonl")]


def test_a_run_may_decode_where_it_trains(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training and validation read the same clips; without a GPU they are left to PyAV."""
    if not torch.cuda.is_available():
        for place in ("data.loader", "train.start"):
            monkeypatch.setattr(f"vcycle.{place}.check_decoder", lambda decoder, device: None)
        monkeypatch.setattr("vcycle.data.decode.torchcodec._decode", lambda *_, **__: False)
    top1 = {}
    for decoder in ("pyav", "nvdec"):
        data = replace(config.data, decoder=decoder, num_workers=2)
        few = replace(config, data=data, evaluation=Evaluation(times=1, precise_bn=1))
        top1[decoder] = train(few, tmp_path / decoder)["top1"]
    ours, theirs = losses(tmp_path / "pyav"), losses(tmp_path / "nvdec")
    assert theirs[0] == pytest.approx(ours[0], rel=0.02)
    if not torch.cuda.is_available():
        assert theirs == ours
        assert top1["pyav"] == top1["nvdec"]


def test_workers_that_are_killed_cost_no_video(
    config: RunConfig, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third video is under way when its worker gets SIGKILL, once."""
    main, killed = os.getpid(), tmp_path / "killed"
    killed.mkdir()
    decode = ClipDataset._decode

    def is_killed_at_first(self: ClipDataset, video: Video, grid: Grid, out: torch.Tensor) -> bool:
        mark = killed / video.path.replace("/", " ")
        trains = (tmp_path / "cut" / "config.yaml").exists()  # the rehearsal is over
        if trains and os.getpid() != main and int(mark.stem[-5:]) % 3 == 0:
            with suppress(FileExistsError):
                mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return decode(self, video, grid, out)

    monkeypatch.setattr(ClipDataset, "_decode", is_killed_at_first)
    two = replace(config, data=replace(config.data, num_workers=2))
    cut = train(two, tmp_path / "cut")
    assert len(list(killed.iterdir())) == (24 + 12) / 3
    assert not (tmp_path / "cut" / "bad_videos.json").exists()
    whole = json.loads((trained_run / "result.json").read_text())
    assert (cut["bad_videos"], cut["top1"]) == (0, whole["top1"])
    assert losses(tmp_path / "cut") == losses(trained_run)
    ours, theirs = weights(trained_run), weights(tmp_path / "cut")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_leaves_a_line_for_each_step_of_its_plan(config: RunConfig, tmp_path: Path) -> None:
    result = train(config, tmp_path / "run")
    plan = config.plan()
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(len(plan)))
    for row, step in zip(rows, plan, strict=True):
        assert row["shape"] == str(step.shape)
        assert row["batch_size"] == step.batch_size
        assert row["learning_rate"] == step.learning_rate
        assert row["phase"] == step.phase
        assert row["norm_group"] == step.norm_group
        assert 0 <= row["waiting_seconds"] <= row["seconds"]
        assert row["clips_per_second"] > 0
    assert {row["shape"] for row in rows} == {str(shape) for shape in plan.shapes}
    validations = read_rows(tmp_path / "run" / "validation.jsonl")
    assert [row["step"] for row in validations] == [len(plan) * k // 3 - 1 for k in (1, 2, 3)]
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["top1"] == validations[-1]["top1"]
    assert result["clips"] == plan.num_clips
    assert result["steps"] == len(plan)
    phases = read_rows(tmp_path / "run" / "phases.jsonl")
    assert [row["phase"] for row in phases] == list(range(len(plan.phases)))
    assert all(0 <= row["wait_share"] <= 1 for row in phases)
    saved_plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert saved_plan["steps"] == len(plan)


def test_a_validation_is_no_time_of_a_phase(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What limits a phase is told by its steps; a validation may come in the middle of it."""
    score_videos = loop.score_videos

    def score_slowly(*args: Any, **others: Any) -> VideoScores:
        time.sleep(1)
        return score_videos(*args, **others)

    monkeypatch.setattr(loop, "score_videos", score_slowly)
    train(config, tmp_path / "run")
    clips: Counter[int] = Counter()
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    for row in rows:
        clips[row["phase"]] += row["batch_size"]
    phases = read_rows(tmp_path / "run" / "phases.jsonl")
    seconds = sum(clips[row["phase"]] / row["clips_per_second"] for row in phases)
    assert seconds == pytest.approx(rows[-1]["seconds"], abs=1)


def test_a_stopped_run_resumes_to_the_same_weights(
    config: RunConfig, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at = 7
    asked = 0
    set_rate = loop.set_learning_rate

    def interrupt(optimizer: torch.optim.Optimizer, rate: float) -> None:
        nonlocal asked
        asked += 1
        if asked == interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)  # in the middle of a step
            time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)  # as torchrun passes it on
        set_rate(optimizer, rate)

    monkeypatch.setattr(loop, "set_learning_rate", interrupt)
    with pytest.raises(KeyboardInterrupt, match=f"after step {interrupt_at} of"):
        train(config, tmp_path / "cut")
    monkeypatch.undo()
    assert len(losses(tmp_path / "cut")) == interrupt_at
    assert not (tmp_path / "cut" / "result.json").exists()
    train(config, tmp_path / "cut", resume=True)
    assert losses(tmp_path / "cut") == losses(trained_run)
    phases = read_rows(tmp_path / "cut" / "phases.jsonl")
    assert [row["phase"] for row in phases] == list(range(len(config.plan().phases)))
    starts = read_rows(tmp_path / "cut" / "starts.jsonl")
    assert [row["step"] for row in starts] == [0, interrupt_at]
    assert starts[0]["command"] == shlex.join(sys.orig_argv)
    assert starts[0]["versions"]["torch"] == version("torch")
    scores = [(run / "scores.csv").read_text() for run in (trained_run, tmp_path / "cut")]
    assert scores[0] == scores[1]
    whole, cut = weights(trained_run), weights(tmp_path / "cut")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_the_first_request_to_stop_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    """With a promise of Ctrl-C alone: torchrun sends SIGTERM to those that a process has left."""
    keeping = "stopping as soon as what is done can be kept; Ctrl-C 2 s from now stops at once"
    for number, line in ((signal.SIGTERM, "asked to stop by SIGTERM"), (signal.SIGINT, keeping)):
        for says, said in ((True, f"\n{line}\n"), (False, "")):
            with stop.stop_requests(says=says):
                for _ in range(2):
                    os.kill(os.getpid(), number)
            assert capfd.readouterr().err == said


def test_a_later_ctrl_c_is_not_held_but_sigterm_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_ECHO_SECONDS", 0.0)
    with stop.stop_requests() as received:
        for count in range(1, 20):
            os.kill(os.getpid(), signal.SIGTERM)
            assert len(received) == count
            time.sleep(0.001)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_closed_terminal_stops_a_run_unless_nohup_started_it() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, count in ((signal.SIG_DFL, 1), (signal.SIG_IGN, 0)):
            signal.signal(signal.SIGHUP, handler)
            with stop.stop_requests() as received:
                if count:  # of a handler: SIGHUP would end the tests
                    assert callable(signal.getsignal(signal.SIGHUP))
                os.kill(os.getpid(), signal.SIGHUP)
                assert len(received) == count
            assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("exits", [True, False])
def test_a_process_that_exits_ignores_sigterm_once_stopped(exits: bool) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        with pytest.raises(Stopped), stop.stop_requests(exits=exits):
            raise Stopped
        after = [signal.getsignal(number) for number in numbers]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert after == ([before[0], *[signal.SIG_IGN] * 3] if exits else before)


def test_a_run_stopped_in_its_last_step_keeps_its_last_validation(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config, multigrid=Multigrid.off(steps=4, norm_group=4))

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the machine went away")

    monkeypatch.setattr(loop, "score_videos", fail)
    with pytest.raises(RuntimeError):
        train(replace(config, evaluation=Evaluation(times=1, batch_size=6)), tmp_path / "run")
    monkeypatch.undo()
    one = replace(config, evaluation=Evaluation(times=1, batch_size=6))
    result = train(one, tmp_path / "run", resume=True)
    assert len(losses(tmp_path / "run")) == 4
    assert result["top1"] == read_rows(tmp_path / "run" / "validation.jsonl")[-1]["top1"]
    before = (tmp_path / "run" / "result.json").read_text()
    assert train(one, tmp_path / "run", resume=True) == result  # complete: nothing is done again
    assert (tmp_path / "run" / "result.json").read_text() == before


def test_a_bad_validation_video_is_left_out_of_the_score(config: RunConfig, tmp_path: Path) -> None:
    copy = tmp_path / "videos"
    shutil.copytree(config.data.manifest, copy)
    (copy / "val" / "00003.mp4").write_bytes(b"not a video")
    data = replace(config.data, manifest=str(copy), max_bad_share=0.5)
    config = replace(config, data=data, multigrid=Multigrid.off(steps=4, norm_group=4))
    result = train(config, tmp_path / "run")
    assert result["videos"] == 11
    assert result["bad_videos"] == 1
    assert list(json.loads((tmp_path / "run" / "bad_videos.json").read_text())) == ["val/00003.mp4"]


def test_the_steps_before_too_many_bad_videos_are_kept(config: RunConfig, tmp_path: Path) -> None:
    copy = tmp_path / "videos"
    shutil.copytree(config.data.manifest, copy)
    for number in (3, 17):
        (copy / "train" / f"{number:05}.mp4").unlink()
    data = replace(config.data, manifest=str(copy))
    config = replace(config, data=data, multigrid=Multigrid.off(norm_group=4))
    with pytest.raises(TooManyBadVideos, match="2 of 24 videos cannot be read"):
        train(config, tmp_path / "run")
    steps = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt")["next_step"] == len(steps) > 0
    assert len(json.loads((tmp_path / "run" / "bad_videos.json").read_text())) == 2
    more = replace(config, data=replace(config.data, max_bad_share=0.1))
    assert train(more, tmp_path / "run", resume=True)["bad_videos"] == 2


def test_the_steps_before_too_many_bad_videos_of_all_processes_are_kept(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each accepts its own; together they are too many, which all know after the step."""
    copy = tmp_path / "videos"
    shutil.copytree(config.data.manifest, copy)
    (copy / "train" / "00003.mp4").unlink()
    data = replace(config.data, manifest=str(copy), max_bad_share=0.05)
    config = replace(config, data=data, multigrid=Multigrid.off(norm_group=4))
    of_another = {"train/00017.mp4": "not there"}
    monkeypatch.setattr(loop, "united", lambda own, _: {**own, **of_another} if own else own)
    with pytest.raises(TooManyBadVideos, match="2 of 24 videos cannot be read"):
        train(config, tmp_path / "run")
    steps = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert load_checkpoint(tmp_path / "run" / "checkpoint.pt")["next_step"] == len(steps) > 0


def test_a_fitted_plan_leaves_a_process_its_own_workers_and_disks(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_first(fabric: Fabric, make: Callable[[], Any]) -> Any:
        found = make()
        if isinstance(found, RunConfig):
            found = replace(found, data=replace(found.data, cache_folder="elsewhere"), threads=9)
        return found

    def asked(config: RunConfig, *_: Any, **__: Any) -> None:
        raise RuntimeError(f"{config.data.cache_folder}, {config.threads}")

    monkeypatch.setattr(start, "from_first", of_first)
    monkeypatch.setattr(start, "make_train_loader", asked)
    config = replace(config, multigrid=Multigrid.off(norm_group=4))
    own = f"^{re.escape(str(config.data.cache_folder))}, {config.threads}$"
    with pytest.raises(RuntimeError, match=own):
        train(config, tmp_path / "run", budget_seconds=20.0)


def test_a_run_begun_anew_forgets_the_bad_videos_of_before(
    config: RunConfig, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(config_text(config))
    (tmp_path / "run" / "bad_videos.json").write_text('{"val/00003.mp4": "was broken"}')
    assert train(config, tmp_path / "run", resume="auto")["bad_videos"] == 0
    assert not (tmp_path / "run" / "bad_videos.json").exists()


def test_batches_that_only_the_plan_can_divide_train_to_the_end(
    config: RunConfig, tmp_path: Path
) -> None:
    """The baseline's can't be; norm statistics are estimated from those of the last grid."""
    cycle = LongCycle(((0.5, 1.0), (1.0, 1.0)), batch_factors=(4, 2), once=True)
    result = train(
        replace(
            config,
            baseline=replace(config.baseline, batch_size=3),
            multigrid=Multigrid(
                long_cycle=cycle, short_cycle=None, fine_tuning=False, norm_group=3, steps=4
            ),
            accumulate=2,
            evaluation=Evaluation(times=1, batch_size=6, precise_bn=2),
        ),
        tmp_path / "run",
    )
    assert result["steps"] == 4
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert {row["batch_size"] for row in rows} == {12, 6}


def test_two_micro_batches_and_worker_processes_change_nothing_but_rounding(
    config: RunConfig, tmp_path: Path
) -> None:
    config = replace(config, multigrid=replace(config.multigrid, norm_group=2))
    config = replace(config, model=Model("resnet3d_tiny", {"width": 4, "dropout": 0.5}))
    train(config, tmp_path / "one")
    parts = replace(config, accumulate=2, data=replace(config.data, num_workers=2))
    train(parts, tmp_path / "two")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_channels_last_and_contiguous_memory_train_alike(
    config: RunConfig, trained_run: Path, tmp_path: Path
) -> None:
    assert config.channels_last
    train(replace(config, channels_last=False), tmp_path / "contiguous")
    assert len(losses(tmp_path / "contiguous")) == len(config.plan())
    assert losses(tmp_path / "contiguous") == pytest.approx(losses(trained_run), rel=1e-4)


def test_the_same_seed_repeats_a_run_and_another_does_not(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(config, multigrid=Multigrid.off(steps=4, norm_group=4))
    forward, seeds = TinyResNet3d.forward, list[int]()

    def draws(self: TinyResNet3d, clips: torch.Tensor) -> torch.Tensor:
        if self.training:
            seeds.append(torch.initial_seed())
        return forward(self, clips)

    monkeypatch.setattr(TinyResNet3d, "forward", draws)
    drawn = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(replace(config, seed=seed), tmp_path / name)
        drawn.append(seeds[-4:])  # without the rehearsal's
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "c")
    # What a model draws by itself, too.
    assert drawn[0] == drawn[1]
    assert len({*drawn[0], *drawn[2]}) == 8


def test_shapes_of_an_image_model_and_a_rectangle_train(config: RunConfig, tmp_path: Path) -> None:
    baseline = replace(config.baseline, shape=Shape(1, 32, 48))
    spatial = LongCycle(((1.0, 0.5), (1.0, 1.0)))
    images = replace(
        config,
        baseline=baseline,
        multigrid=replace(config.multigrid, long_cycle=spatial, rule=ShapeRule(side_multiple=8)),
    )
    result = train(images, tmp_path / "run")
    assert 0 <= result["top1"] <= 1


def test_unreadable_videos_are_replaced_and_listed(config: RunConfig, tmp_path: Path) -> None:
    copy = tmp_path / "videos"
    shutil.copytree(config.data.manifest, copy)
    config = replace(config, data=replace(config.data, manifest=str(copy)))
    names = [f"train/0000{k}.mp4" for k in (3, 5)]
    (copy / names[0]).write_bytes(b"not a video")
    assert train(config, tmp_path / "one")["bad_videos"] == 1  # one never stops a run
    (copy / names[1]).write_bytes(b"not a video")
    with pytest.raises(ValueError, match="cannot be read") as caught:  # 2 of 24: more than 1%
        train(config, tmp_path / "two")
    assert all(name in str(caught.value) for name in names)
    assert sorted(json.loads((tmp_path / "two" / "bad_videos.json").read_text())) == names


def test_videos_of_one_class_are_refused(config: RunConfig, tmp_path: Path) -> None:
    manifest = Manifest.read(config.data.manifest)
    videos = tuple(replace(video, labels=(0,)) for video in manifest.videos)
    replace(manifest, classes=("run",), videos=videos).write(tmp_path)
    config = replace(config, data=replace(config.data, manifest=str(tmp_path)))
    with pytest.raises(ValueError, match="all of one class; a model needs at least two"):
        train(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: replace(c, data=replace(c.data, manifest="/no/such/folder")), "/no/such/folder"),
        (lambda c: replace(c, data=replace(c.data, manifest="")), "give --data FILE"),
        (lambda c: replace(c, model=Model("resnet3d_tinny")), "resnet3d_tiny"),
        (
            lambda c: replace(c, multigrid=replace(c.multigrid, norm_group=3)),
            "norm_group 3: groups of 3 clips do not divide the batch of",
        ),
        (lambda c: replace(c, accumulate=3), "accumulate 3: it does not divide the batch of 4"),
        (
            lambda c: replace(c, accumulate=2),
            "accumulate 2: its micro-batches of 2 clips at 8x32x32 would split norm groups of 4; g",
        ),
    ],
)
def test_what_a_user_got_wrong_is_one_line(
    config: RunConfig, tmp_path: Path, change: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        train(change(config), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("batch_size", "norm_group", "accumulate", "processes", "problem"),
    [
        (4, None, 1, 3, "4 clips at 8x32x32 does not divide into 3 equal parts; give --batch-size"),
        (4, None, 1, 4, None),
        (7, 1, 1, 2, "7 clips at 8x32x32 does not divide into 2 equal parts; give --batch-size, a"),
        (8, 8, 1, 2, None),
        (6, 1, 2, 2, "6 clips at 8x32x32 does not divide into 4 equal parts; give --batch-size, a"),
        (6, 2, 1, 2, "6 clips at 8x32x32 would split norm groups of 2 unevenly; give --multigrid."),
        (6, 3, 1, 2, None),
    ],
)
def test_batches_that_processes_cannot_share_are_refused_before_any_is_timed(
    config: RunConfig,
    batch_size: int,
    norm_group: int | None,
    accumulate: int,
    processes: int,
    problem: str | None,
) -> None:
    """The finest first, of which a user gave the size."""
    config = replace(
        config,
        baseline=replace(config.baseline, batch_size=batch_size),
        multigrid=replace(config.multigrid, norm_group=norm_group),
        accumulate=accumulate,
    )
    fabric: Any = SimpleNamespace(world_size=processes)
    network = convert_batch_norm(torch.nn.Sequential(torch.nn.BatchNorm3d(1)))
    expected = f"^{processes} processes: the batch of {problem}"
    with pytest.raises(ValueError, match=expected) if problem else nullcontext():
        check_batch_division(config, network, fabric)


def test_frozen_norms_ask_for_no_whole_groups(config: RunConfig) -> None:
    config = replace(config, accumulate=2)  # of batches of 4 clips, in groups of 4
    fabric: Any = SimpleNamespace(world_size=1)
    layers = torch.nn.Conv3d(3, 1, 1), torch.nn.BatchNorm3d(1)
    network = convert_batch_norm(torch.nn.Sequential(*layers))
    with pytest.raises(ValueError, match="would split norm groups of 4"):
        check_batch_division(config, network, fabric)
    freeze(network, ["1"])
    check_batch_division(config, network, fabric)
    defer_statistics(network)
    *_, kind = config.plan().mini_batches()
    assert Pieces(network, config, world_size=1).halve(kind)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_norms_without_groups_that_see_a_part_of_a_batch_are_told_of(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str], accumulate: int
) -> None:
    multigrid = Multigrid.off(steps=4, norm_group=None)
    config = replace(config, multigrid=multigrid, accumulate=accumulate)
    train(replace(config, evaluation=Evaluation(times=1)), tmp_path / "run")
    said = "batch norms take statistics from a part of a batch at a time, so that the number of "
    advice = "parts changes the result; give --multigrid.norm_group, 8 as in the paper or fewer\n"
    assert (said + advice in capsys.readouterr().out) == (accumulate == 2)


@pytest.mark.parametrize("processes", [3, 6])
def test_a_batch_of_the_size_that_is_advised_can_be_shared(
    config: RunConfig, processes: int
) -> None:
    """In whole norm groups, too."""
    multigrid = replace(config.multigrid, norm_group=4)
    config = replace(config, multigrid=multigrid)
    fabric: Any = SimpleNamespace(world_size=processes)
    network = convert_batch_norm(torch.nn.Sequential(torch.nn.BatchNorm3d(1)))
    with pytest.raises(ValueError, match="give --batch-size, a multiple of") as caught:
        check_batch_division(config, network, fabric)
    (size,) = re.findall(r"a multiple of (\d+)", str(caught.value))
    baseline = replace(config.baseline, batch_size=int(size))
    check_batch_division(replace(config, baseline=baseline), network, fabric)


class Remembering(torch.nn.Sequential):
    """A model that keeps more in its state than tensors."""

    def __init__(self, kept: Any) -> None:
        pool = torch.nn.Sequential(torch.nn.AdaptiveAvgPool3d(1), torch.nn.Flatten())
        super().__init__(pool, torch.nn.Linear(3, 12))
        self.kept = kept

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


def plain_state() -> Remembering:
    return Remembering({"calls": 3})


def unreadable_state() -> Remembering:
    return Remembering(Path("calls"))


def unwritable_state() -> Remembering:
    return Remembering(threading.Lock())


def test_a_model_may_keep_more_than_tensors(config: RunConfig, tmp_path: Path) -> None:
    config = replace(config, multigrid=Multigrid.off(steps=4, norm_group=4))
    train(replace(config, model=Model(f"{__name__}:plain_state")), tmp_path / "run")
    assert weights(tmp_path / "run")["_extra_state"] == {"calls": 3}
    for function in ("unreadable_state", "unwritable_state"):
        with pytest.raises(ValueError, match="could not be read again; let get_extra_state"):
            train(replace(config, model=Model(f"{__name__}:{function}")), tmp_path / function)


def test_a_run_starts_from_the_weights_of_another(
    config: RunConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace(config, multigrid=Multigrid.off(steps=4, norm_group=4))
    train(config, tmp_path / "first")
    checkpoint = str(tmp_path / "first" / "checkpoint.pt")
    still = replace(config.baseline.learning_rate, base=1e-12, warmup_steps=0)
    second = replace(
        config,
        baseline=replace(config.baseline, learning_rate=still),
        model=replace(config.model, weights=checkpoint, pretrained_on="kinetics400"),
        optimizer=Optimizer(weight_decay=0.0),
    )
    train(second, tmp_path / "second")
    assert "not in the file 0" in capsys.readouterr().out
    first = weights(tmp_path / "first")
    for name, value in weights(tmp_path / "second").items():
        if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
            torch.testing.assert_close(value, first[name])
    with pytest.raises(ValueError, match="starts from kinetics400 weights, and none are known"):
        train(replace(second, model=replace(second.model, weights=None)), tmp_path / "third")


def test_the_seconds_of_all_phases_are_those_of_all_steps(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: list[float] = []
    add = RunFolder.add_phase

    def noted(folder: RunFolder, phase: int, stats: Any) -> None:
        seconds.append(stats.wait_seconds + stats.use_seconds)
        add(folder, phase, stats)

    monkeypatch.setattr(RunFolder, "add_phase", noted)
    train(replace(config, evaluation=Evaluation(times=1, batch_size=6)), tmp_path / "run")
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["seconds"] == pytest.approx(sum(seconds))
