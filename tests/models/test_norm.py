from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from vcycle.models import SubBatchNorm3d, build_model, convert, set_group_size


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


@settings(deadline=None, max_examples=25)
@given(
    group=st.integers(1, 5),
    groups=st.integers(1, 5),
    channels=st.integers(1, 6),
    affine=st.booleans(),
    last=st.booleans(),
)
def test_equals_a_loop_over_groups_of_plain_layers(
    group: int, groups: int, channels: int, affine: bool, last: bool
) -> None:
    memory_format = torch.channels_last_3d if last else torch.contiguous_format
    ours, plain = pair(channels, affine=affine)
    ours.group_clips = group
    x = clips(group * groups, channels).to(memory_format=memory_format)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = ours(a), loop_over_groups(plain, b, group)
    weights = torch.linspace(-1, 1, out.numel()).view(out.shape)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)
    if affine:
        torch.testing.assert_close(ours.weight.grad, plain.weight.grad, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.bias.grad, plain.bias.grad, rtol=1e-5, atol=1e-5)
    assert out.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("group", [1, 2, 4, 8, None])
def test_running_statistics_are_those_of_one_plain_layer(
    group: int | None, momentum: float | None
) -> None:
    ours, plain = pair(3, momentum=momentum)
    set_group_size(ours, group)
    for step in range(3):
        x = clips(8, 3, seed=step)
        ours(x), plain(x)
    torch.testing.assert_close(ours.state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-6)
    ours.eval(), plain.eval()
    torch.testing.assert_close(ours(x), plain(x))


def test_groups_that_do_not_divide_raise() -> None:
    layer = SubBatchNorm3d(2)
    set_group_size(layer, 3)
    with pytest.raises(ValueError, match="3 clips do not divide a batch of 8"):
        layer(clips(8, 2))
    layer.eval()
    layer(clips(8, 2))
    with pytest.raises(ValueError, match="at least 1"):
        set_group_size(layer, 0)


def test_convert_keeps_parameters_and_shared_layers() -> None:
    shared = nn.BatchNorm3d(4)
    nn.init.zeros_(shared.weight)
    model = nn.Sequential(nn.Conv3d(3, 4, 1), shared, nn.Conv3d(4, 4, 1), shared).eval()
    before = list(model.parameters())
    state = {key: value.clone() for key, value in model.state_dict().items()}
    x = clips(4, 3)
    expected = model(x)
    assert convert(model) is model
    assert isinstance(model[1], SubBatchNorm3d)
    assert model[1] is model[3]
    assert not model[1].training
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert torch.count_nonzero(model[1].weight) == 0
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    nn.Sequential(nn.Conv3d(3, 4, 1), shared, nn.Conv3d(4, 4, 1), shared).load_state_dict(state)
    assert isinstance(convert(nn.BatchNorm3d(3)), SubBatchNorm3d)


def test_convert_leaves_a_model_without_batch_norm() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    layers = list(model)
    convert(model)
    set_group_size(model, 8)
    assert list(model) == layers


def test_group_size_reaches_every_layer() -> None:
    model = convert(build_model("resnet3d_tiny", num_classes=3))
    set_group_size(model, 4)
    layers = [m for m in model.modules() if isinstance(m, nn.BatchNorm3d)]
    assert len(layers) > 5
    assert {layer.group_clips for layer in layers if isinstance(layer, SubBatchNorm3d)} == {4}
    assert model(torch.randn(8, 3, 4, 16, 16)).shape == (8, 3)
