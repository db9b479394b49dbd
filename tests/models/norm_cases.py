"""What the tests of normalisation share, and what they run in other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vcycle.models import (
    SubBatchNorm3d,
    commit_statistics,
    defer_statistics,
    precise_bn,
    set_norm_group,
)

GROUPS_OF_STEPS = (2, 4, 8)


def clips(batch: int, channels: int, *, seed: int = 0) -> Tensor:
    """Clips whose means and scales differ, so that a wrong grouping shows."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((batch, channels, 2, 3, 3), generator=generator)
    position = torch.arange(batch).view(batch, 1, 1, 1, 1)
    return x * (1 + position / batch) + 0.3 * position


def pair(channels: int, **options: object) -> tuple[SubBatchNorm3d, nn.BatchNorm3d]:
    """The layer under test and a plain one, with the same random parameters."""
    plain = nn.BatchNorm3d(channels, **options)  # type: ignore[arg-type]
    if plain.affine:
        nn.init.uniform_(plain.weight, 0.5, 2)
        nn.init.normal_(plain.bias)
    ours = SubBatchNorm3d(channels, **options)  # type: ignore[arg-type]
    ours.load_state_dict(plain.state_dict())
    return ours, plain


def loop_over_groups(plain: nn.BatchNorm3d, x: Tensor, group: int) -> Tensor:
    return torch.cat([plain(part) for part in x.split(group)])


def run_rank(rank: int, folder: Path) -> None:
    """Train a layer for three steps as one of 4 processes with 2 clips each."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=4
    )
    torch.manual_seed(0)
    ours, _ = pair(3)
    defer_statistics(ours)
    results: dict[str, Any] = {"out": [], "grad": []}
    for step, group in enumerate(GROUPS_OF_STEPS):
        set_norm_group(ours, group)
        x = clips(8, 3, seed=step).chunk(4)[rank].requires_grad_()
        weights = torch.linspace(-1, 1, 4 * x.numel()).view(8, *x.shape[1:]).chunk(4)[rank]
        out = ours(x)
        (out * weights).sum().backward()
        commit_statistics(ours)
        results["out"].append(out.detach())
        results["grad"].append(x.grad)
    state = {key: value.clone() for key, value in ours.state_dict().items()}
    set_norm_group(ours, 4)  # which spans two processes
    precise_bn(ours, [clips(8, 3, seed=step).chunk(4)[rank] for step in range(2)])
    results["precise"] = [ours.running_mean.clone(), ours.running_var.clone()]
    at_once = SubBatchNorm3d(3)  # the statistics of a step are not deferred
    set_norm_group(at_once, 8)
    at_once(clips(8, 3).chunk(4)[rank])
    results["at_once"] = at_once.state_dict()
    results |= {"weight": ours.weight.grad, "bias": ours.bias.grad, "state": state}
    torch.save(results, folder / f"{rank}.pt")
    dist.barrier()  # none leaves while another still connects to it
    dist.destroy_process_group()
