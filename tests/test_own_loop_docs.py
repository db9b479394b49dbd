"""Samples of docs/own_loop.md run as they stand, on a small network and random videos."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric.utilities.apply_func import move_data_to_device
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, Subset

import vcycle
from tests.data.test_collate import Frames
from tests.train.plans import BASELINE
from vcycle.data.request import ClipRequest

TEXT = (Path(__file__).parents[1] / "docs" / "own_loop.md").read_text()
PLAN = vcycle.Plan(replace(BASELINE, num_videos=12), vcycle.Multigrid(norm_group=4))


def sample(heading: str) -> str:
    """The first code under a heading."""
    section = TEXT.partition(f"# {heading}\n")[2]
    return section.partition("```python\n")[2].partition("```")[0]


def names(**more: Any) -> dict[str, Any]:
    """What the text has made before."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv3d(3, 4, 1),
        nn.BatchNorm3d(4),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(4, 5),
    )
    model = vcycle.convert_dropout(vcycle.convert_batch_norm(network))
    sampler = vcycle.PlanSampler(PLAN, 12, 0)
    dataset = vcycle.ClipsOf(Frames())
    return {
        "vcycle": vcycle,
        "torch": torch,
        "DataLoader": DataLoader,
        "replace": replace,
        "plan": PLAN,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "sampler": sampler,
        "loader": DataLoader(dataset, batch_sampler=sampler, collate_fn=vcycle.collate),
        **more,
    }


def test_epochs_as_steps() -> None:
    found = {"epochs": 10, "dataset": range(100), "batch_size": 8, "milestones": (4, 7)}
    exec(TEXT.split("```python\n")[2].partition("```")[0], found)
    assert (found["steps"], found["stage_ends"]) == (125, (50, 87))


def test_other_shares_and_shapes_are_a_single_pass() -> None:
    """In a baseline of several learning-rate stages."""
    rows = re.findall(r"^\| (?:shares of the steps|shapes) \| `(.*)` \|$", TEXT, re.MULTILINE)
    plans = []
    for row in rows:
        multigrid = eval(row, names(multigrid=vcycle.Multigrid.named("anneal")))
        plans.append(vcycle.Plan(BASELINE, replace(multigrid, norm_group=4)))
    assert [[phase.kind for phase in plan.phases] for plan in plans] == [["pass"] * 3, ["pass"] * 2]


def test_clips_from_elsewhere() -> None:
    found = names(videos=torch.rand(12, 3, 6, 20, 20), labels=torch.arange(12) % 5)
    exec(sample("Without vcycle's data"), found)
    assert found["scheduler"].last_epoch == len(PLAN)
    last = PLAN[-1]
    assert found["clips"].shape[2:] == (last.shape.frames, last.shape.height, last.shape.width)
    assert len(found["clips"]) == last.batch_size
    assert found["loss"].isfinite()


def test_pixels_of_your_own_keep_the_requests_part() -> None:
    section = TEXT.partition("# Without vcycle's data\n")[2]
    second = section.split("```python\n")[2].partition("```")[0]
    found = names(videos=torch.rand(12, 3, 6, 20, 20), labels=torch.arange(12) % 5, F=F)
    exec(second, found)
    assert found["scheduler"].last_epoch == len(PLAN)
    assert found["batch"]["clips"].shape == (
        *(PLAN[-1].batch_size, 3, PLAN[-1].shape.frames),
        *(PLAN[-1].shape.height, PLAN[-1].shape.width),
    )
    # Lightning moves dataclasses to a device only if they know how.
    moved = move_data_to_device(found["batch"], torch.device("meta"))
    assert moved["clips"].is_meta
    assert moved["part"] == found["batch"]["part"]


def test_more_than_a_class() -> None:
    """Frames are as bright as their number, and so is their label."""
    lengths = [5 + index for index in range(12)]
    videos = [torch.arange(n).byte().view(n, 1, 1, 1).expand(n, 30, 40, 3) for n in lengths]
    found = names(
        videos=videos,
        targets=torch.rand(12, 2),
        frame_labels=[torch.arange(length) for length in lengths],
    )
    found["sampler"] = [next(iter(found["sampler"]))]
    exec(sample("More than a class"), found)
    batch, second = found["batch"], found["second"]
    assert torch.equal(batch.clips[:, 0, :, 0, 0].long(), found["labels"])
    assert batch.part == second.part
    assert not torch.equal(batch.clips, second.clips)
    assert found["numbers"].shape == (len(batch), 2)


def test_forward_passes_of_other_masks() -> None:
    found = names()
    model, batch = found["model"], next(iter(found["loader"]))
    vcycle.apply_step(batch, model=model, optimizer=found["optimizer"])
    clips = vcycle.normalize(batch.clips)
    first, same = model(clips), model(clips)
    vcycle.set_dropout_seeds(model, batch.part.seeds("second view"))
    other = model(clips)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    both = np.concatenate([batch.part.dropout_seeds, batch.part.seeds("second view")])
    vcycle.set_dropout_seeds(model, both)
    torch.testing.assert_close(model(torch.cat([clips, clips])), torch.cat([first, other]))


def test_a_teacher_in_training_mode_has_the_norm_group_too() -> None:
    found, teacher = names(), names()["model"]
    both = nn.ModuleList([found["model"], teacher])
    step = vcycle.apply_step(next(iter(found["loader"])), model=both, optimizer=found["optimizer"])
    assert teacher[1].norm_group == found["model"][1].norm_group == step.norm_group


def test_a_rate_of_your_own() -> None:
    found = names()
    found["loader"] = list(found["loader"])[:1]
    exec(sample("A rate of your own"), found)
    (group,) = found["optimizer"].param_groups
    assert group["lr"] == pytest.approx(PLAN[0].learning_rate / 10)


def test_rows_of_datasets() -> None:
    frames = Frames()
    assert "vcycle.ClipsOf(ConcatDataset([first, second]))" in TEXT
    often = vcycle.ClipsOf(ConcatDataset([frames, Subset(frames, [3, 3, 3])]))
    request = ClipRequest(14, vcycle.Shape(2, 16, 16), 7)
    assert len(often) == 15
    assert often[request].label == frames[3][1]
    clip = torch.rand(3, 6, 20, 20)
    assert "(clip * 255).round().to(torch.uint8).permute(1, 2, 3, 0)" in TEXT
    taken = vcycle.to_shape((clip * 255).round().to(torch.uint8).permute(1, 2, 3, 0), request)
    assert taken.shape == (2, 16, 16, 3)
