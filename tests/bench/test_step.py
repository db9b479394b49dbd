"""Timed steps of the smallest net: the rows' form, and what the plan makes of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vcycle.bench import step
from vcycle.bench.step import StepBench, StepRow, bench_steps, clips_of, step_kinds
from vcycle.cli.bench_step import prediction_text
from vcycle.cli.main import main
from vcycle.config.paper_speedups import PAPER_SPEEDUPS, paper_speedup
from vcycle.config.recipes import recipe
from vcycle.config.run import Model, RunConfig
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import MiniBatch
from vcycle.schedule.shape import Shape

CPU = torch.device("cpu")
CONFIG = RunConfig(
    recipe="test",
    baseline=Baseline(Shape(4, 32, 32), 8, 60, 24, LearningRate(0.1), (24, 40)),
    model=Model("resnet3d_tiny", {"width": 2}),
    threads=1,
)
FLAGS = ("--model.options", "{width: 2}", "--shape", "4x32x32", "--threads", "1")


def test_every_kind_of_step_is_measured_once() -> None:
    seen: list[StepRow] = []
    rows = bench_steps(CONFIG, num_classes=3, repeats=2, progress=seen.append)
    kinds = CONFIG.plan().mini_batches()
    assert seen == rows
    assert [(Shape.parse(row.shape), row.clips, row.norm_group) for row in rows] == [
        (kind.shape, kind.batch_size, kind.norm_group) for kind in kinds
    ]
    for row in rows:
        parts = (row.forward_seconds, row.backward_seconds, row.optimizer_seconds)
        assert min(*parts, row.host_seconds) > 0
        assert row.seconds > max(parts)
        assert (row.bytes, row.batch_size) == (None, row.clips)


def test_kinds_that_come_to_the_same_clips_are_measured_once() -> None:
    rows = bench_steps(CONFIG, num_classes=3, max_clips=4, repeats=1)
    assert [row.shape for row in rows] == [str(shape) for shape in CONFIG.plan().shapes]
    assert {(row.clips, row.norm_group) for row in rows} == {(4, None)}
    batches = {kind.shape: kind.batch_size for kind in CONFIG.plan().mini_batches()}
    assert [row.batch_size for row in rows] == [batches[Shape.parse(row.shape)] for row in rows]


def test_the_share_of_one_device() -> None:
    rows = bench_steps(CONFIG, num_classes=3, num_devices=4, max_clips=16, repeats=1)
    for row in rows:
        assert row.clips == min(row.batch_size, 4 * 16)
        assert row.norm_group is None or row.clips // 4 % row.norm_group == 0


@pytest.mark.parametrize(
    ("batch_size", "group", "max_clips", "clips"),
    [(64, 8, None, 64), (64, 8, 20, 16), (64, 8, 5, 5), (64, None, 20, 20), (64, 8, 100, 64)],
)
def test_limited_clips_are_whole_norm_groups(
    batch_size: int, group: int | None, max_clips: int | None, clips: int
) -> None:
    kind = MiniBatch(Shape(4, 32, 32), batch_size, group, steps=1)
    assert clips_of(kind, torch.device("cuda"), max_clips=max_clips) == clips
    large = replace(kind, shape=Shape(32, 224, 224))
    assert clips_of(large, CPU) == 1
    assert clips_of(large, torch.device("cuda"), num_devices=8) == 8


def test_the_baselines_own_step_is_among_them() -> None:
    """Of a run too short to visit it."""
    multigrid = Multigrid(long_cycle=None, fine_tuning=False, steps=2)
    baseline = replace(CONFIG.baseline, steps=2, stage_ends=())
    plan = replace(CONFIG, multigrid=multigrid, baseline=baseline).plan()
    assert baseline.shape not in plan.shapes
    assert [kind.shape for kind in step_kinds(plan)] == [*plan.shapes, baseline.shape]


def test_a_compiled_network_is_timed() -> None:
    bench = StepBench(replace(CONFIG, compile=True), num_classes=3, compile_backend="eager")
    seconds, peak = bench.measure(Shape(2, 16, 16), 4, norm_group=2, repeats=1)
    assert seconds.step > 0
    assert peak is None


def test_a_batch_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, real, tried = 4, step.timed_step, []

    def limited(model, optimizer, pixels, labels, **settings):  # type: ignore[no-untyped-def]
        tried.append(len(pixels))
        if len(pixels) > fits:
            raise torch.OutOfMemoryError
        return real(model, optimizer, pixels, labels, **settings)

    monkeypatch.setattr(step, "timed_step", limited)
    bench, kind = StepBench(CONFIG, num_classes=3), MiniBatch(Shape(2, 16, 16), 16, 8, steps=1)
    row = bench.row(kind, 16, num_devices=2, repeats=1)
    assert tried == [16, 8, 4, 4]
    assert (row.clips, row.batch_size, row.norm_group) == (8, 16, None)
    fits = 0
    with pytest.raises(ValueError, match=r"^shape 2x16x16: one clip does not fit into the memory"):
        bench.row(kind, 2, num_devices=1, repeats=1)


@pytest.mark.parametrize("name", ["num_devices", "max_clips", "repeats"])
def test_numbers_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} 0: give at least 1$"):
        bench_steps(CONFIG, num_classes=3, **{name: 0})


def test_the_plan_reads_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps of mine.json"
    measured = ("bench", "step", "demo", *FLAGS, "--max-clips", "2", "--repeats", "1")
    assert main([*measured, "--out", str(file)]) == 0
    printed = capsys.readouterr().out
    rows = json.loads(file.read_text())
    assert list(rows[0]) == [
        *("shape", "clips", "batch_size", "norm_group", "seconds", "forward_seconds"),
        *("backward_seconds", "optimizer_seconds", "host_seconds", "bytes"),
    ]
    assert len(rows) == len(printed.split("predicted: ")[0].strip().splitlines()) - 1
    assert main(["plan", "demo", *FLAGS, "--step-seconds", str(file), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert f"{values['predicted_speedup']:.2f}x less" in printed
    assert f"{len(rows)} of {len(rows)} rows have fewer clips than the plan's step" in printed
    assert printed.endswith(
        f"vcycle plan demo --model.options '{{width: 2}}' --shape 4x32x32 --threads 1 "
        f"--step-seconds '{file}'\n"
    )
    assert main([*measured, "--out", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "recipe: name one"),
        (("demo", "--max-clips", "0"), "max_clips 0: give at least 1"),
        (("demo", "--model", "resnet3d_tinny"), "did you mean resnet3d_tiny"),
        (("demo", "--out", "/no/such/folder/steps.json"), "/no/such/folder"),
    ],
)
def test_mistakes_are_one_line(
    flags: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    small = (*FLAGS, "--repeats", "1") if "--out" in flags else ()
    assert main(["bench", "step", *flags, *small]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_papers_figure_is_of_its_own_schedule() -> None:
    assert {recipe(name).recipe for name in PAPER_SPEEDUPS} == set(PAPER_SPEEDUPS)
    config = recipe("ssv2-slowfast-r50")
    twice = replace(config, multigrid=replace(config.multigrid, epoch_factor=2.0))
    other = replace(config, multigrid=config.multigrid.with_schedule("pass"))
    cases = (config, twice, other, recipe("demo"))
    assert [paper_speedup(each) for each in cases] == [5.6, 4.2, None, None]
    text = prediction_text(config, measured_of(config))
    assert re.search(r"^predicted: .* 3\.44x less\nthe paper: 5\.6x less, at ", text)


def measured_of(config: RunConfig) -> list[StepRow]:
    """Rows in which every step takes a second."""
    return [
        StepRow(str(each.shape), each.batch_size, each.batch_size, None, 1.0, 0.3, 0.6, 0.1, 1, 8)
        for each in {kind.shape: kind for kind in config.plan().mini_batches()}.values()
    ]
