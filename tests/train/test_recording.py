"""Recorded passes: the same gradients as those that are not, whatever is replayed after what."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from tests.train.test_distributed import end_of, losses, run_config
from vcycle.config.fields import config_text
from vcycle.config.recipes import recipe
from vcycle.config.run import Evaluation, Model, RunConfig
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.models import (
    SubBatchNorm3d,
    build_model,
    commit_statistics,
    convert_batch_norm,
    convert_dropout,
    defer_statistics,
    set_dropout_seeds,
    set_norm_group,
)
from vcycle.models.tiny import TinyResNet3d
from vcycle.schedule.multigrid import Multigrid
from vcycle.train.recording import Recorder, make_recorder
from vcycle.train.run import train


class Recordings:
    """In place of CUDA graphs: what was recorded runs again, on the values that are there now.

    To record a function leaves the statistics of ``network`` as they were.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.num_recorded = self.num_replayed = 0

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.num_recorded += 1
        norms = [each for each in self.network.modules() if isinstance(each, SubBatchNorm3d)]
        pending = [norm._pending for norm in norms if norm._pending is not None]
        statistics = [*pending, *self.network.buffers()]
        before = [each.clone() for each in statistics]
        result = torch.full_like(function(), torch.nan)
        for each, value in zip(statistics, before, strict=True):
            each.copy_(value)

        def replay() -> None:
            self.num_replayed += 1
            result.copy_(function())

        return replay, result


def network() -> nn.Module:
    torch.manual_seed(0)
    model = build_model("resnet3d_tiny", num_classes=3, width=4, dropout=0.5)
    model = convert_dropout(convert_batch_norm(model))
    defer_statistics(model)
    return model


def steps() -> list[tuple[Tensor, Tensor, int]]:
    """Clips, labels and norm group: two kinds in turn, each batch with other values."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for number in range(8):
        dims, group = ((4, 3, 2, 16, 16), 2) if number % 2 else ((2, 3, 4, 24, 24), 1)
        labels = torch.randint(3, dims[:1], generator=generator)
        found.append((torch.randn(dims, generator=generator), labels, group))
    return found


def trained(
    model: nn.Module, recorder: Recorder | None, *, num_batches: int, device: str = "cpu"
) -> list[Tensor]:
    """The results of eight steps of ``num_batches`` passes each."""
    results = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def one_pass(clips: Tensor, labels: Tensor) -> Tensor:
        scores = model(clips)
        loss = F.cross_entropy(scores, labels) / num_batches
        loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach(), (scores.argmax(1) == labels).sum()])

    for number, (clips, labels, group) in enumerate(steps()):
        set_norm_group(model, group)
        for batch in range(num_batches):
            set_dropout_seeds(model, np.arange(len(clips), dtype=np.uint64) + 100 * number + batch)
            inputs = (clips + batch).to(device), labels.to(device)
            if recorder is None:
                results.append(one_pass(*inputs))
            else:
                results.append(recorder((group, clips.shape), one_pass, *inputs))
        commit_statistics(model)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return results


@pytest.mark.parametrize("num_batches", [1, 2, 3])
def test_replayed_passes_are_those_that_they_stand_for(num_batches: int) -> None:
    model, plain = network(), network()
    record = Recordings(model)
    results = trained(model, Recorder(model, record=record), num_batches=num_batches)
    plain_results = trained(plain, None, num_batches=num_batches)
    assert record.num_recorded == 2
    assert record.num_replayed == 8 * num_batches - 2  # each kind's first pass chooses kernels
    assert torch.equal(torch.stack(results), torch.stack(plain_results))
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_parameters_without_a_gradient_stay_without() -> None:
    model = network()
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    model.used, model.unused = used, unused
    recorder = Recorder(model, record=Recordings(model))

    def one_pass(x: Tensor) -> Tensor:
        loss = (x * used).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach().expand(2)

    for number in range(4):
        result = recorder("kind", one_pass, torch.full((2,), float(number)))
        assert result.tolist() == [2.0 * number] * 2
        assert unused.grad is None
    assert used.grad is not None
    assert used.grad.tolist() == [6.0, 6.0]  # of all four, as nobody reset it


class Failing:
    """Fails to record, after the pass was run."""

    def __init__(self, error: Exception) -> None:
        self.error, self.attempts = error, 0

    def __call__(self, function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        self.attempts += 1
        function()
        raise self.error


def pass_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """A pass whose loss is the sum of the model's outputs."""

    def one_pass(x: Tensor) -> Tensor:
        loss = model(x).sum()
        loss.backward()
        return cast(Tensor, loss.detach())

    return one_pass


def test_without_memory_for_a_recording_all_passes_run_as_they_are() -> None:
    model = nn.Linear(2, 1, bias=False)
    record = Failing(torch.OutOfMemoryError("CUDA out of memory"))
    recorder = Recorder(model, record=record)

    for number in range(1, 6):
        recorder(number % 2, pass_of(model), torch.ones(1, 2))
        assert model.weight.grad is not None
        assert model.weight.grad.tolist() == [[number, number]]
    assert record.attempts == 1
    assert not recorder.release()


def test_memory_that_ran_short_before_anything_was_recorded_leaves_recording_on() -> None:
    """A batch that is too large is cut then, and its pieces are recorded."""
    model = network()
    record = Recordings(model)
    recorder = Recorder(model, record=record)
    assert not recorder.release()
    assert not recorder.gave_up
    trained(model, recorder, num_batches=1)
    assert (record.num_recorded, record.num_replayed) == (2, 6)
    assert recorder.release()
    assert recorder.gave_up
    trained(model, recorder, num_batches=1)
    assert record.num_recorded == 2


def test_memory_that_a_library_asked_for_in_vain_is_no_fault_of_the_pass() -> None:
    model = nn.Linear(2, 1)
    error = RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronous")
    recorder = Recorder(model, record=Failing(error))

    for _ in range(3):
        recorder("kind", pass_of(model), torch.ones(1, 2))
    assert recorder.gave_up


def test_a_validation_that_memory_does_not_hold_beside_recordings_is_begun_anew(
    config: RunConfig, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which give theirs back: the run says so, goes on without them, and scores the same."""
    made = with_recorder(monkeypatch)
    whole = TinyResNet3d.forward

    def forward(model: TinyResNet3d, clips: Tensor) -> Tensor:
        kept = len(made) == 2 and made[-1].num_replayed and not released
        if kept and not model.training:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(model, clips)

    released: list[Recorder] = []
    give_back = Recorder.release

    def release(recorder: Recorder) -> bool:
        released.append(recorder)
        return give_back(recorder)

    monkeypatch.setattr(TinyResNet3d, "forward", forward)
    monkeypatch.setattr(Recorder, "release", release)
    said = io.StringIO()
    result = train(config, tmp_path / "run", console=Console(file=said, width=200))
    assert len(released) == 1
    assert said.getvalue().count("CUDA graphs: memory ran short") == 1
    assert losses(tmp_path / "run") == losses(trained_run)
    plain = json.loads((trained_run / "result.json").read_text())
    assert result["top1"] == plain["top1"]


def test_a_pass_that_cannot_be_recorded_is_refused_in_a_line() -> None:
    model = nn.Linear(2, 1)
    error = RuntimeError("operation not permitted when stream is capturing\nmore")
    recorder = Recorder(model, record=Failing(error))

    recorder("kind", pass_of(model), torch.ones(1, 2))
    problem = (
        "cuda_graphs: Linear does in a pass what cannot be recorded (operation not permitted when "
        "stream is capturing); give --cuda_graphs off"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
        recorder("kind", pass_of(model), torch.ones(1, 2))


def with_recorder(monkeypatch: pytest.MonkeyPatch) -> list[Recordings]:
    """Let runs record, as if the CPU were a GPU; what was recorded, by recorder."""
    made: list[Recordings] = []

    def make(config: RunConfig, network: nn.Module, fabric: Any) -> Recorder:
        made.append(Recordings(network))
        return Recorder(network, record=made[-1])

    for module in ("train.gradients", "bench.step"):
        monkeypatch.setattr(f"vcycle.{module}.make_recorder", make)
    return made


def test_a_run_that_replays_is_the_run_that_does_not(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model("resnet3d_tiny", {"width": 4, "dropout": 0.5})
    optimizer = replace(config.optimizer, clip_norm=1.0)
    config = replace(config, model=model, label_smoothing=0.1, optimizer=optimizer)
    config = replace(config, accumulate="auto", evaluation=Evaluation(1, batch_size=6))
    train(config, tmp_path / "plain")
    made = with_recorder(monkeypatch)
    train(config, tmp_path / "replayed")
    rehearsal, loop = made
    kinds = Counter((step.shape, step.batch_size, step.norm_group) for step in config.plan())
    assert rehearsal.num_recorded >= len(kinds)
    assert loop.num_recorded == sum(count > 1 for count in kinds.values()) > 2
    assert loop.num_replayed == sum(count - 1 for count in kinds.values())
    assert losses(tmp_path / "plain") == losses(tmp_path / "replayed")
    plain, replayed = (
        load_checkpoint(tmp_path / name / "checkpoint.pt")["model"]
        for name in ("plain", "replayed")
    )
    for name, value in plain.items():
        assert torch.equal(value, replayed[name]), name


def test_recordings_make_room_before_a_batch_is_cut(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that holds a batch, but not beside what earlier kinds have recorded."""
    config = replace(config, accumulate="auto", evaluation=Evaluation(1, batch_size=6))
    made = with_recorder(monkeypatch)
    whole, released = TinyResNet3d.forward, Recorder.release
    failures = 0

    def forward(model: TinyResNet3d, clips: Tensor) -> Tensor:
        nonlocal failures
        is_full = made and made[-1].num_recorded and made[-1] not in given_back
        if model.training and torch.is_grad_enabled() and is_full and len(clips) > 2:
            failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(model, clips)

    given_back: list[Recordings] = []

    def release(recorder: Recorder) -> bool:
        given_back.append(made[-1])
        return released(recorder)

    monkeypatch.setattr(TinyResNet3d, "forward", forward)
    monkeypatch.setattr(Recorder, "release", release)
    said = io.StringIO()
    train(config, tmp_path / "run", console=Console(file=said))
    assert failures
    assert "pieces" not in said.getvalue()


# Process ``SHORT`` has no memory to exchange gradients: once in the rehearsal, and in two steps.
_REPLAYING = """
import itertools
import os
import sys
from pathlib import Path

import torch

from tests.train.test_recording import Recordings
from vcycle.cli.main import main
from vcycle.train import gradients
from vcycle.train.measure import rehearsed_steps
from vcycle.train.recording import Recorder

made = []

def without_memory(flat, calls):
    count = itertools.count(1)

    def fails(network):
        if os.environ["RANK"] == os.environ.get("SHORT") and next(count) in calls:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return flat(network)

    return fails

def make(config, network, fabric):
    made.append(Recordings(network))
    return Recorder(network, record=made[-1])

gradients.make_recorder = make
rehearsed_steps.flat_gradients = without_memory(gradients.flat_gradients, {1})
gradients.flat_gradients = without_memory(gradients.flat_gradients, {1, 4})
code = main(sys.argv[1:])
if os.environ["RANK"] == "0":
    Path("replayed").write_text(str(made[-1].num_replayed))
os._exit(code)  # as vcycle's own processes end: torch's threads may abort an exit
"""


@pytest.fixture(scope="module")
def one(synthetic_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, Path]:
    """A run of one process, for others to follow, and where it is."""
    config = run_config(synthetic_videos, Model("resnet3d_tiny", {"width": 4, "dropout": 0.5}))
    # Of two processes, a part of the smallest batch is then a norm group, accumulated or not.
    config = replace(config, multigrid=Multigrid(norm_group=2))
    config = replace(config, baseline=replace(config.baseline, batch_size=8))
    folder = tmp_path_factory.mktemp("one") / "run"
    train(config, folder)
    return config, folder


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(("accumulate", "short"), [(2, ""), (1, "1")])
def test_processes_that_replay_follow_the_trajectory_of_one(
    one: tuple[RunConfig, Path], tmp_path: Path, accumulate: int, short: str
) -> None:
    """Also if one cuts a batch, or gives its recordings back, while the other waits for it."""
    config, folder = one
    (tmp_path / "replaying.py").write_text(_REPLAYING)
    config = replace(config, accumulate=accumulate)
    (tmp_path / "config.yaml").write_text(config_text(config))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "replaying.py", "train", "--config", "config.yaml", "--folder", "two"]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, *command],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "SHORT": short},
        start_new_session=True,
    )
    error = end_of(process)
    assert process.returncode == 0, error
    kinds = Counter((step.shape, step.batch_size, step.norm_group) for step in config.plan())
    replayed = int((tmp_path / "replayed").read_text())
    assert replayed == accumulate * len(config.plan()) - len(kinds) > 5
    assert losses(tmp_path / "two") == pytest.approx(losses(folder), rel=1e-5)
    ours, theirs = (
        load_checkpoint(run / "checkpoint.pt")["model"] for run in (folder, tmp_path / "two")
    )
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-3, atol=1e-4, msg=name)


def asked(model: str, cuda_graphs: str) -> RunConfig:
    config = replace(recipe("k400-slowfast-r50"), cuda_graphs=cuda_graphs)  # type: ignore[arg-type]
    return replace(config, model=Model(model))


def test_who_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vcycle.train.recording._CudaGraphs", lambda: Recordings(nn.Identity()))

    def recorder(model: str, cuda_graphs: str, device: str, processes: int = 1) -> Recorder | None:
        fabric: Any = SimpleNamespace(
            device=torch.device(device), world_size=processes, print=print
        )
        network = nn.Identity() if model == without_norms else SubBatchNorm3d(2)
        return make_recorder(asked(model, cuda_graphs), network, fabric)

    own, other, without_norms = "slowfast_r50", "collections:OrderedDict", "video_vit_tiny"
    assert recorder(own, "auto", "cuda")
    assert recorder(other, "auto", "cuda") is None
    assert recorder(other, "on", "cuda")
    assert recorder(own, "off", "cuda") is None
    assert recorder(own, "auto", "cpu") is None
    assert recorder(own, "auto", "cuda", 2) is None
    assert recorder(own, "on", "cuda", 2)
    assert recorder(without_norms, "on", "cuda", 128)
    for problem, arguments in {
        "not for a CPU": ("cpu", 1),
        "norm groups span processes, which": ("cuda", 128),
    }.items():
        with pytest.raises(ValueError, match=rf"^cuda_graphs on: .*{problem}.*; give --cuda_gra"):
            recorder(own, "on", *arguments)


def test_processes_that_exchange_buffers_do_not_record() -> None:
    fabric: Any = SimpleNamespace(device=torch.device("cuda"), world_size=2, print=print)
    with pytest.raises(ValueError, match=r"^cuda_graphs on: 2 processes exchange buffers of slow"):
        make_recorder(asked("slowfast_r50", "on"), nn.BatchNorm3d(2), fabric)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("num_batches", [1, 2])
def test_cuda_graphs_leave_what_plain_passes_do(num_batches: int) -> None:
    model, plain = network().cuda(), network().cuda()
    results = trained(model, Recorder(model), num_batches=num_batches, device="cuda")
    plain_results = trained(plain, None, num_batches=num_batches, device="cuda")
    torch.testing.assert_close(torch.stack(results), torch.stack(plain_results))
    torch.testing.assert_close(model.state_dict(), plain.state_dict(), rtol=1e-4, atol=1e-5)
