"""Timed steps of the smallest net: the rows' form, and what the plan makes of them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.test_recording import with_recorder
from vcycle.bench import step
from vcycle.bench.batches import batch_factors, smallest_fast_enough
from vcycle.bench.paper_speedups import PAPER_SPEEDUPS, paper_speedup
from vcycle.bench.step import (
    StepBench,
    StepRow,
    StepSeconds,
    bench_steps,
    clips_of,
    step_kinds,
)
from vcycle.cli import bench_step
from vcycle.cli.bench_step import prediction_text
from vcycle.cli.main import main
from vcycle.config.recipes import recipe
from vcycle.config.run import Model, RunConfig
from vcycle.devices import precision
from vcycle.models import TokenDrop
from vcycle.models.frozen import is_in_training
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import MiniBatch, Plan
from vcycle.schedule.shape import Shape

CPU = torch.device("cpu")
POWERS = [2**power for power in range(11)]
CONFIG = RunConfig(
    recipe="test",
    baseline=Baseline(Shape(4, 32, 32), 8, 60, 24, LearningRate(0.1), (24, 40)),
    model=Model("resnet3d_tiny", {"width": 2}),
    threads=1,
)
FLAGS = ("--model.options", "{width: 2}", "--shape", "4x32x32", "--threads", "1")


def measured(**settings: Any) -> list[StepRow]:
    return bench_steps(StepBench(CONFIG, num_classes=3), CONFIG.plan(), **settings)


def test_every_kind_of_step_is_measured_once() -> None:
    seen: list[StepRow] = []
    rows = measured(repeats=2, progress=seen.append)
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
    rows = measured(max_clips=4, repeats=1)
    assert [row.shape for row in rows] == [str(shape) for shape in CONFIG.plan().shapes]
    assert {(row.clips, row.norm_group) for row in rows} == {(4, None)}
    batches = {kind.shape: kind.batch_size for kind in CONFIG.plan().mini_batches()}
    assert [row.batch_size for row in rows] == [batches[Shape.parse(row.shape)] for row in rows]


def test_the_share_of_one_device() -> None:
    rows = measured(num_devices=4, max_clips=16, repeats=1)
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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_blocks_are_compiled_for_more_rows_than_torch_does_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._dynamo import config

    compiled = 0

    def backend(graph: Any, inputs: list[Any]) -> Any:
        nonlocal compiled
        compiled += 1
        return graph.forward

    monkeypatch.setattr(step, "compile_blocks", partial(step.compile_blocks, backend=backend))
    torch.compiler.reset()
    with config.patch(cache_size_limit=8, accumulated_cache_size_limit=256):
        bench = StepBench(replace(CONFIG, compile=True), num_classes=3)
        seconds, peak = bench.measure(Shape(2, 16, 16), 4, norm_group=2, repeats=1)
        assert config.cache_size_limit >= 4 * 100
    torch.compiler.reset()
    assert compiled == 4  # blocks
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
        measured(**{name: 0})


def test_the_plan_reads_what_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps of mine.json"
    command = ("bench", "step", "demo", *FLAGS, "--max-clips", "2", "--repeats", "1")
    assert main([*command, "--out", str(file)]) == 0
    printed = capsys.readouterr().out
    rows = json.loads(file.read_text())
    assert list(rows[0]) == [
        *("model", "precision", "device"),
        *("shape", "clips", "batch_size", "norm_group", "seconds", "forward_seconds"),
        *("backward_seconds", "optimizer_seconds", "host_seconds", "bytes", "token_share"),
    ]
    assert len(rows) == len(printed.split("predicted: ")[0].strip().splitlines()) - 1
    assert main(["plan", "demo", *FLAGS, "--step-seconds", str(file), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    saved = values["predicted_speedup"]
    assert (f"{saved:.2f}x less" if saved >= 1 else f"{1 / saved:.2f}x as much") in printed
    assert f"{len(rows)} of {len(rows)} rows have fewer clips than the plan's step" in printed
    assert printed.endswith(
        f"vcycle plan demo --model.options '{{width: 2}}' --shape 4x32x32 --threads 1 "
        f"--step-seconds '{file}'\n"
    )
    timed = f"steps were timed on {rows[0]['device']} in 32-true"
    assert timed in values["notes"]
    faster = ("--precision", "bf16-mixed", "--step-seconds", str(file), "--json")
    assert main(["plan", "demo", *FLAGS, *faster]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert f"{timed}; this plan runs in bf16-mixed" in notes
    assert main([*command, "--out", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())
    other = ["plan", "demo", "--model", "slowfast_tiny", "--step-seconds", str(file)]
    assert main(other) == 2
    assert (
        "they are steps of resnet3d_tiny; measure those of slowfast_tiny with `vcycle bench step`"
        in capsys.readouterr().err
    )


def test_rows_of_a_model_are_those_of_its_aliases() -> None:
    assert Model("slowfast_r50_8x8").network == Model("slowfast_r50").network
    assert Model("mine:network").network == "mine:network"


def test_an_interrupt_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    show, shown = bench_step._show, []

    def interrupted(row: StepRow) -> None:
        show(row)
        shown.append(row)
        if len(shown) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(bench_step, "_show", interrupted)
    command = ["bench", "step", "demo", *FLAGS, "--max-clips", "2", "--repeats", "1"]
    file = tmp_path / "steps.json"
    assert main([*command, "--out", str(file)]) == 130
    assert [row["shape"] for row in json.loads(file.read_text())] == [r.shape for r in shown]


def test_a_file_of_ones_own_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["bench", "step", "demo", *FLAGS, "--max-clips", "2", "--repeats", "1"]
    Path("steps.json").write_text('{"my own": 1}')
    assert main(command) == 2
    assert "--out steps.json: it is there, and no file of vcycle bench" in capsys.readouterr().err
    assert Path("steps.json").read_text() == '{"my own": 1}'
    Path("steps.json").unlink()
    assert main(command) == main(command) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "recipe: name one"),
        (("demo", "--max-clips", "0"), "max_clips 0: give at least 1"),
        (("demo", "--model", "resnet3d_tinny"), "did you mean resnet3d_tiny"),
        (("demo", "--out", "/no/such/steps.json"), "--out /no/such/steps.json: there is no folder"),
        (("demo", "--max-clips", "1", "--shape", "4x16x16"), "give a larger --max-clips"),
        (("demo", "--baseline", "--batches"), "--batches: the plan has no coarser shape"),
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


@pytest.mark.parametrize("what", [("step", "demo"), ("loader", "videos")])
def test_several_processes_would_time_each_other(
    what: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["bench", *what]) == 2
    assert "one process; start it without torchrun" in capfd.readouterr().err


def test_the_papers_figure_is_of_its_own_schedule() -> None:
    assert {recipe(name).recipe for name in PAPER_SPEEDUPS} == set(PAPER_SPEEDUPS)
    config = recipe("ssv2-slowfast-r50")
    twice = replace(config, multigrid=replace(config.multigrid, epoch_factor=2.0))
    other = replace(config, multigrid=config.multigrid.with_schedule("pass"))
    groups = replace(config, multigrid=replace(config.multigrid, norm_group=4))
    network = replace(config, model=Model("resnet3d_tiny"))
    cases = (config, twice, groups, other, network, recipe("demo"))
    assert [paper_speedup(each) for each in cases] == [5.6, 4.2, 5.6, None, None, None]
    text = prediction_text(config, measured_of(config))
    assert re.search(r"^predicted: .* 3\.44x less\nthe paper: 5\.6x less, at ", text)


def measured_of(config: RunConfig) -> list[StepRow]:
    """Rows in which every step takes a second."""
    return [
        StepRow(str(each.shape), each.batch_size, each.batch_size, None, 1.0, 0.3, 0.6, 0.1, 1, 8)
        for each in {kind.shape: kind for kind in config.plan().mini_batches()}.values()
    ]


def test_the_smallest_batch_that_is_fast_enough() -> None:
    assert smallest_fast_enough({1: 50.0, 2: 96.0, 4: 100.0, 8: 99.0}) == 2
    assert smallest_fast_enough({1: 50.0, 2: 94.0, 4: 100.0}) == 4
    assert smallest_fast_enough({}) == 1


def test_batches_follow_the_throughput_and_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device on which a step takes a second, and more once it holds 200,000 pixels."""
    bench, plan = StepBench(CONFIG, num_classes=3), CONFIG.plan()
    tried: list[tuple[str, int]] = []

    def measure(shape: Shape, clips: int, **_: Any) -> tuple[StepSeconds, int]:
        tried.append((str(shape), clips))
        pixels = shape.num_pixels * clips
        if pixels > 300_000:
            raise torch.OutOfMemoryError
        return StepSeconds(0.2, 0.6, 0.2, max(1.0, pixels / 100_000), 0.1), pixels

    monkeypatch.setattr(bench, "measure", measure)
    rows: list[StepRow] = []
    factors = batch_factors(bench, plan, num_devices=2, progress=rows.append)
    bases = list(dict.fromkeys(phase.base.shape for phase in plan.phases))
    assert [str(shape) for shape in bases] == ["1x23x23", "2x23x23", "2x32x32", "4x32x32"]
    expected = []
    for shape in bases[:-1]:
        rates = {n: 4 * n / max(1.0, 4 * n * shape.num_pixels / 100_000) for n in POWERS}
        fit = {n: rate for n, rate in rates.items() if 4 * n * shape.num_pixels <= 300_000}
        expected.append(smallest_fast_enough(fit))
    assert factors == (*expected, 1) == (64, 32, 16, 1)
    assert all(row.clips == row.batch_size for row in rows)
    cycle = replace(LongCycle(), batch_factors=factors)
    longer = replace(CONFIG.baseline, steps=6_000, stage_ends=(2_400, 4_000))
    changed = Plan(longer, replace(CONFIG.multigrid, long_cycle=cycle))
    sizes = {phase.base.shape: phase.base.batch_size for phase in changed.phases}
    assert [sizes[shape] // 8 for shape in bases] == list(factors)
    assert max(batch_factors(bench, plan, max_clips=16)) == 2
    assert max(batch_factors(bench, plan, most_batch=63)) == 4
    assert batch_factors(bench, plan, most_batch=7) == (1, 1, 1, 1)
    tried.clear()
    assert batch_factors(bench, plan, max_clips=4) == (1, 1, 1, 1)
    assert {clips for _, clips in tried} == {4}
    grouped = replace(plan.multigrid, norm_group=8)  # which do not divide what a device has
    assert batch_factors(bench, Plan(plan.baseline, grouped), num_devices=2) == factors
    with pytest.raises(ValueError, match=r"^num_devices 3: it does not divide the batch of 8"):
        batch_factors(bench, plan, num_devices=3)


def test_rows_hold_no_recordings_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that holds every batch, but not beside what an earlier row has recorded."""
    made, whole = with_recorder(monkeypatch), step.timed_step

    def limited(*given: Any, **settings: Any) -> StepSeconds:
        if made[-1].num_recorded:
            raise torch.OutOfMemoryError
        return whole(*given, **settings)

    monkeypatch.setattr(step, "timed_step", limited)
    bench = StepBench(CONFIG, num_classes=3)
    rows = bench_steps(bench, CONFIG.plan(), max_clips=4, repeats=1)
    assert {row.clips for row in rows} == {4}
    assert len(made) == len(rows) > 2
    assert all(each.num_replayed for each in made)


@pytest.mark.parametrize("recipe_name", ["scratch", "demo"])
def test_steps_are_timed_in_the_precision_that_training_would_choose(
    recipe_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one's own videos, on a GPU; its plan may then run in that, too."""
    asked: list[RunConfig] = []

    def asks(config: RunConfig, **_: Any) -> None:
        asked.append(config)
        raise ValueError("asked")

    monkeypatch.setattr(precision, "fastest_precision", lambda *_, **__: "tf32")
    monkeypatch.setattr(step, "StepBench", asks)
    out = ("--out", str(tmp_path / "steps.json"))
    for flags in ((), ("--precision", "bf16-mixed")):
        assert main(["bench", "step", recipe_name, *flags, *out]) == 2
    chosen = "tf32" if recipe_name == "scratch" else "32-true"
    assert [config.precision for config in asked] == [chosen, "bf16-mixed"]


def test_the_command_says_which_batches_to_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "steps.json"
    command = ["bench", "step", "demo", *FLAGS, "--max-clips", "8", "--repeats", "1", "--batches"]
    assert main([*command, "--out", str(file)]) == 0
    found = re.search(r"batches by throughput: (--\S+) '(.*)'", capsys.readouterr().out)
    assert found is not None
    flags = [*FLAGS, found[1], found[2]]
    assert main(["plan", "demo", *flags, "--step-seconds", str(file), "--json"]) == 0
    phases = json.loads(capsys.readouterr().out)["phases"]
    assert [phase["batch_size"] // 8 for phase in phases[:4]] == json.loads(found[2])
    assert main([*command, "--json", "--out", str(file)]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out) == json.loads(file.read_text())
    assert f"batches by throughput: {found[1]} '" in output.err


def test_a_folder_that_cannot_be_written_to_is_refused_before_a_step_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vcycle.data.atomic.is_writable", lambda _: False)
    file = tmp_path / "steps.json"
    assert main(["bench", "step", "demo", *FLAGS, "--out", str(file)]) == 2
    assert f"--out {file}: {tmp_path} is read-only; name a" in capsys.readouterr().err


def test_shares_of_tokens_are_measured_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    cycle = LongCycle(((1.0, 1.0), (1.0, 1.0)), shares=(0.5, 0.5), tokens=(0.25, 1.0), once=True)
    multigrid = Multigrid(cycle, None, fine_tuning=False, norm_group=None, steps=6)
    config = replace(
        CONFIG,
        baseline=replace(CONFIG.baseline, stage_ends=()),
        multigrid=multigrid,
        model=Model("video_vit_tiny", {"width": 16, "depth": 1, "heads": 1}),
    )
    taken: list[float] = []
    whole = step.timed_step

    def noted(model: torch.nn.Module, *given: Any, **settings: Any) -> StepSeconds:
        taken.extend(each.share for each in model.modules() if isinstance(each, TokenDrop))
        return whole(model, *given, **settings)

    monkeypatch.setattr(step, "timed_step", noted)
    rows = bench_steps(StepBench(config, num_classes=3), config.plan(), max_clips=4, repeats=1)
    assert [row.token_share for row in rows] == [0.25, 1.0]
    assert taken == [0.25] * 2 + [1.0] * 2  # one to choose kernels, and one that is timed


def test_layers_that_a_run_freezes_are_not_trained() -> None:
    config = replace(CONFIG, model=replace(CONFIG.model, freeze=("stem*", "blocks")))
    network = StepBench(config, num_classes=3).network
    trained = [name for name, each in network.named_parameters() if each.requires_grad]
    assert trained == ["head.weight", "head.bias"]
    assert not is_in_training(network.stem_bn)
    with pytest.raises(ValueError, match="freeze sten: the model has no such layer; near it: stem"):
        StepBench(replace(CONFIG, model=replace(CONFIG.model, freeze=("sten",))), num_classes=3)


def test_a_model_that_fails_is_told_of_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "square_net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, clips):\n"
        "        assert clips.shape[3] == 32, 'a side of 32'\n"
        "        return super().forward(clips.mean((2, 3, 4)))\n"
        "def build(num_classes): return Net(3, num_classes).eval()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = replace(CONFIG, model=Model("square_net:build"))
    with pytest.raises(
        ValueError, match=r"^model: at shape 1x16x16 it fails: AssertionError: a si"
    ):
        StepBench(config, num_classes=3)
    config = replace(config, multigrid=Multigrid.off())
    assert StepBench(config, num_classes=3).network.training
