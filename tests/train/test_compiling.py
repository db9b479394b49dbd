"""Compiled blocks: each once for each shape, none in a second cycle, the same in evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.train.plans import PLAN
from vcycle.config.run import Evaluation, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.models import (
    build_model,
    commit_statistics,
    convert_batch_norm,
    defer_statistics,
    set_norm_group,
)
from vcycle.models.tiny import BasicBlock
from vcycle.schedule.multigrid import Multigrid
from vcycle.train.compiling import compile_blocks, find_blocks
from vcycle.train.run import train

# torch hides it, but not from filters that make warnings errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


class Counting:
    """A backend that compiles nothing and counts what it is asked to."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, graph: Any, inputs: list[Any]) -> Any:
        self.total += 1
        return graph.forward


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    from torch._dynamo import config

    torch.compiler.reset()
    with config.patch(cache_size_limit=8, accumulated_cache_size_limit=256):
        yield
    torch.compiler.reset()


class Stage(nn.Module):
    """Blocks that are alike, as in every stage of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = BasicBlock(3, 4, stride=2)
        self.rest = nn.ModuleList(BasicBlock(4, 4, stride=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.rest:
            x = block(x)
        return x


def test_a_block_is_compiled_once_for_each_shape_and_not_in_a_second_cycle() -> None:
    """More shapes than the eight at which torch gives up, and blocks that share their code."""
    network = convert_batch_norm(nn.Sequential(Stage()))
    defer_statistics(network)
    backend, kinds = Counting(), PLAN.mini_batches()
    assert len(kinds) > 8
    names = list(network.state_dict())
    compile_blocks(network, num_kinds=len(kinds), backend=backend)
    assert list(network.state_dict()) == names
    for cycle in range(2):
        for kind in kinds:
            set_norm_group(network, kind.norm_group)
            shape = kind.shape
            clips = torch.randn(kind.batch_size, 3, shape.frames, shape.height, shape.width)
            network(clips).sum().backward()
            commit_statistics(network)
        if cycle == 0:
            assert backend.total == 2 * len(kinds)  # the first block, and those after it
    assert backend.total == 2 * len(kinds)


def test_a_compiled_run_trains_and_validates_as_a_plain_one(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Counting()
    monkeypatch.setattr(
        "vcycle.train.measure.rehearsal.compile_blocks", partial(compile_blocks, backend=backend)
    )
    # Four kinds of steps; the other test compiles all of a plan.
    schedule = replace(config.multigrid, short_cycle=None)
    few = replace(config, multigrid=schedule, evaluation=Evaluation(2, batch_size=6))
    plain = train(few, tmp_path / "plain")
    assert backend.total == 0
    compiled = train(replace(few, compile=True), tmp_path / "compiled")
    assert compiled["top1"] == plain["top1"]
    ours, theirs = (
        [row["loss"] for row in read_rows(tmp_path / name / "metrics.jsonl")]
        for name in ("compiled", "plain")
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
    blocks, kinds = 4, len(few.plan().mini_batches())
    # And once for validations: 12 videos are two batches of one size.
    assert backend.total == blocks * (kinds + 1)


def test_averaged_weights_are_validated_by_compiled_code(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_network, of_average = Counting(), Counting()
    for module, backend in (("measure.rehearsal", of_network), ("start", of_average)):
        monkeypatch.setattr(
            f"vcycle.train.{module}.compile_blocks", partial(compile_blocks, backend=backend)
        )
    few = replace(config, multigrid=Multigrid.off(steps=4, norm_group=4))
    averaged = replace(few, evaluation=Evaluation(2, batch_size=6), ema_decay=0.9)
    plain = train(averaged, tmp_path / "plain")
    compiled = train(replace(averaged, compile=True), tmp_path / "compiled")
    assert compiled["top1"] == plain["top1"]
    assert of_average.total == 4  # its blocks, for validations alone


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet3d_tiny", {"BasicBlock": 4}),
        ("slowfast_r50", {"ResidualBlock": 32, "FastToSlow": 4, "StemPathway": 2}),
    ],
)
def test_blocks_are_found_in_the_paper_s_models(name: str, expected: dict[str, int]) -> None:
    with torch.device("meta"):
        model = build_model(name, num_classes=2)
    assert Counter(type(block).__name__ for block in find_blocks(model)) == expected


def test_a_network_without_blocks_is_compiled_whole() -> None:
    backend = Counting()
    network = BasicBlock(3, 4, stride=2)
    compile_blocks(network, num_kinds=1, backend=backend)
    network(torch.zeros(1, 3, 2, 4, 4))
    assert backend.total == 1
