"""Precise batch norm: the statistics of given batches, and nothing else changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from tests.models.norm_cases import clips
from vcycle.models import (
    SubBatchNorm3d,
    build_model,
    convert_batch_norm,
    defer_statistics,
    precise_bn,
    set_norm_group,
)


def test_statistics_are_those_of_all_clips_together() -> None:
    """With one layer, by hand: batches of 4 and 8 clips, groups of 2."""
    layer = SubBatchNorm3d(3)
    set_norm_group(layer, 2)
    batches = [clips(4, 3, seed=1), clips(8, 3, seed=2)]
    assert precise_bn(layer, batches) == 1
    together = torch.cat(batches)
    torch.testing.assert_close(layer.running_mean, together.mean((0, 2, 3, 4)))
    var = together.var((0, 2, 3, 4))
    torch.testing.assert_close(layer.running_var, var)


def test_all_layers_of_a_model_and_nothing_else() -> None:
    torch.manual_seed(0)
    model = convert_batch_norm(build_model("resnet3d_tiny", num_classes=3, width=4, dropout=0.5))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm3d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
    set_norm_group(model, 2)
    defer_statistics(model)
    model.eval()
    model.dropout.train()
    batches = [torch.randn(4, 3, 4, 16, 16) + i for i in range(3)]
    inputs: list[Tensor] = []
    deep = model.blocks[1].a_bn
    hook = deep.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    before = {k: v.clone() for k, v in model.state_dict().items() if "running" not in k}
    assert precise_bn(model, iter(batches)) == 12
    hook.remove()
    seen = torch.cat(inputs)
    torch.testing.assert_close(deep.running_mean, seen.mean((0, 2, 3, 4)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(deep.running_var, seen.var((0, 2, 3, 4)), rtol=0.01, atol=0)
    after = {k: v for k, v in model.state_dict().items() if "running" not in k}
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert not model.training
    assert not deep.training
    assert model.dropout.training
    assert deep.momentum == 0.1
    assert deep._pending is not None
    assert not deep._pending.any()
    again = model.state_dict()["stem_bn.running_var"].clone()
    precise_bn(model, batches)
    torch.testing.assert_close(model.stem_bn.running_var, again)


def test_parts_of_batches_change_nothing() -> None:
    """Of a deep layer, whose groups have few values: each group alone, or four to a batch."""
    torch.manual_seed(0)
    model = convert_batch_norm(build_model("resnet3d_tiny", num_classes=3, width=4)).double()
    set_norm_group(model, 2)
    batches = [torch.randn(8, 3, 4, 16, 16, dtype=torch.float64) + i for i in range(2)]
    found = []
    for size in (8, 4, 2):
        precise_bn(model, [part for batch in batches for part in batch.split(size)])
        found.append({k: v.clone() for k, v in model.state_dict().items() if "running" in k})
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


class UsedTwice(nn.Module):
    """One norm layer on two different inputs, as in models that share a branch."""

    def __init__(self, norm: nn.BatchNorm3d) -> None:
        super().__init__()
        self.norm = norm
        self.unused = nn.BatchNorm3d(2)

    def forward(self, clips: Tensor) -> Tensor:
        first: Tensor = self.norm(clips)
        return first + self.norm(3 * clips + 1)


@pytest.mark.parametrize("group", [2, None])
def test_a_layer_that_is_used_twice_takes_the_mean_of_its_uses(group: int | None) -> None:
    model = UsedTwice(SubBatchNorm3d(3, momentum=0.5))
    set_norm_group(model, group)
    x = clips(4, 3)
    assert precise_bn(model, [x]) == 2
    mean, var = x.mean((0, 2, 3, 4)), x.var((0, 2, 3, 4))
    torch.testing.assert_close(model.norm.running_mean, (mean + 3 * mean + 1) / 2)
    torch.testing.assert_close(model.norm.running_var, (1 + 9) * var / 2)
    assert model.norm.momentum == 0.5
    assert int(model.norm.num_batches_tracked) == 0
    torch.testing.assert_close(model.unused.running_var, torch.ones(2), rtol=0, atol=0)


def test_layers_that_a_model_keeps_in_evaluation_stay_as_they_are() -> None:
    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self[0].eval()
            return self

    model = Frozen(SubBatchNorm3d(3), SubBatchNorm3d(3)).train()
    x = clips(4, 3) + 1
    assert precise_bn(model, [x]) == 1
    assert not model[0].running_mean.any()
    torch.testing.assert_close(model[1].running_mean, model[0](x).mean((0, 2, 3, 4)))
    model[1] = nn.Identity()
    assert precise_bn(model, iter(())) == 0


@pytest.mark.parametrize("num_clips", [2, 3, 50])
def test_layers_of_other_dimensions(num_clips: int) -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6))
    x = torch.randn(num_clips, 6, 1, 1, 1) * 3 + 2
    assert precise_bn(model, [x]) == 1
    torch.testing.assert_close(model[1].running_var, x.flatten(1).var(0))


def test_number_of_batches() -> None:
    drawn = []

    def batches() -> Iterator[Tensor]:
        for i in range(10):
            drawn.append(i)
            yield clips(4, 3, seed=i)

    precise_bn(SubBatchNorm3d(3), batches(), num_batches=2)
    assert drawn == [0, 1]
    assert precise_bn(nn.LayerNorm(3), batches()) == 0
    assert drawn == [0, 1]


def test_failures_leave_the_statistics_as_they_were() -> None:
    layer = SubBatchNorm3d(3)
    set_norm_group(layer, 3)
    layer(clips(6, 3))
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    with pytest.raises(ValueError, match="no batch to measure"):
        precise_bn(layer, [])
    message = r"^precise_bn: norm_group 3: .* batch of 4 clips; .*set_norm_group\(model, None\)"
    with pytest.raises(ValueError, match=message):
        precise_bn(layer, [clips(6, 3), clips(4, 3)])
    with pytest.raises(TypeError, match=r"a batch is list; give what .*normalize\(batch.clips\)"):
        precise_bn(layer, [[clips(6, 3)]])
    with pytest.raises(ValueError, match="not finite"):
        precise_bn(layer, [clips(6, 3), clips(6, 3) * torch.nan])
    torch.testing.assert_close(dict(layer.state_dict()), before, rtol=0, atol=0)
    assert layer.training
    assert layer.momentum == 0.1


def test_buffers_of_other_layers_stay_as_they_were():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, clips):
            self.calls += 1
            return clips

    model = nn.Sequential(Counter(), nn.BatchNorm3d(3))
    assert precise_bn(model, [torch.randn(4, 3, 2, 4, 4)]) == 1
    assert model[0].calls == 0
    assert not torch.equal(model[1].running_mean, torch.zeros(3))
