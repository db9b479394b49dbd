"""What the models of the paper must do beyond the numbers of the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vcycle.models import build_model
from vcycle.models.blocks import Bottleneck
from vcycle.models.count import multiply_adds, num_parameters
from vcycle.models.entries import find_model
from vcycle.models.nonlocal_block import NonLocalBlock
from vcycle.models.slowfast import slow_frame_indices
from vcycle.schedule.shape import Shape

SMALL = [
    "c2d_r50",
    "slow_r50",
    "i3d_nl_r50",
    "slowfast_r50",
    "slowfast_r50_16f_alpha2_paper",
    "slowfast_tiny",
]


@pytest.mark.parametrize("name", SMALL)
def test_any_shape_works(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(name, num_classes=3).eval()
    for shape in ((1, 16, 16), (5, 17, 33), (4, 50, 20)):
        with torch.no_grad():
            scores = model(torch.randn(1, 3, *shape))
        assert scores.shape == (1, 3)
        assert scores.isfinite().all()


@pytest.mark.parametrize("clips", [torch.zeros(3, 8, 16, 16), torch.zeros(1, 1, 8, 16, 16)])
def test_other_tensors_are_refused(clips: Tensor) -> None:
    for name in ("i3d_r50", "slowfast_r50", "resnet3d_tiny"):
        with torch.device("meta"):
            model = build_model(name, num_classes=3)
        with pytest.raises(ValueError, match=r"give \(B, 3, T, H, W\)"):
            model(clips)


@pytest.mark.parametrize("alpha", [1, 2, 4, 8])
def test_slow_frames_follow_the_official_rule(alpha: int) -> None:
    for frames in range(alpha, 113, alpha):
        expected = torch.linspace(0, frames - 1, frames // alpha).long().tolist()
        assert slow_frame_indices(frames, alpha) == expected, frames


def test_slow_frames_where_alpha_does_not_divide() -> None:
    assert slow_frame_indices(1, 4) == [0]
    assert slow_frame_indices(6, 4) == [0, 5]
    assert len(slow_frame_indices(17, 4)) == 5


@pytest.mark.parametrize("name", ["slowfast_r50", "i3d_nl_r50"])
def test_initialisation(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(name, num_classes=400)
    finals = [m.c_bn for m in model.modules() if isinstance(m, Bottleneck)]
    finals += [m.bn for m in model.modules() if isinstance(m, NonLocalBlock)]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm3d)]
    assert len(finals) >= 16
    for norm in norms:
        assert (norm.weight == (0 if norm in finals else 1)).all()
        assert not norm.bias.any()
    for module in model.modules():
        if isinstance(module, nn.Conv3d):
            fan_out = module.out_channels * module.weight[0, 0].numel()
            if module.weight.numel() > 5000:
                assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
            assert module.bias is None or not module.bias.any()
    assert model.head.projection.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert not model.head.projection.bias.any()


def brute_force_nonlocal(block: NonLocalBlock, x: Tensor) -> Tensor:
    """One query position at a time."""
    pooled = nn.functional.max_pool3d(x, (1, 2, 2))
    theta, phi, g = block.conv_theta(x), block.conv_phi(pooled), block.conv_g(pooled)
    y = torch.zeros_like(theta)
    for t in range(x.shape[2]):
        for i in range(x.shape[3]):
            for j in range(x.shape[4]):
                scores = torch.einsum("bc,bcthw->bthw", theta[:, :, t, i, j], phi).flatten(1)
                if block.kind == "softmax":
                    weights = (scores / theta.shape[1] ** 0.5).softmax(1)
                else:
                    weights = scores / scores.shape[1]
                y[:, :, t, i, j] = torch.einsum("bk,bck->bc", weights, g.flatten(2))
    return x + block.bn(block.conv_out(y))


@pytest.mark.parametrize("kind", ["softmax", "dot_product"])
def test_nonlocal_block_against_brute_force(kind: str) -> None:
    torch.manual_seed(0)
    block = NonLocalBlock(6, kind=kind).eval()
    nn.init.normal_(block.bn.weight)
    x = torch.randn(2, 6, 2, 5, 4)
    with torch.no_grad():
        torch.testing.assert_close(block(x), brute_force_nonlocal(block, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("slowfast_r50", {"alpha": 0}, "alpha 0: "),
        ("slowfast_r50", {"alpha": 2.0}, "alpha 2.0: give a whole number of at least 1"),
        ("slowfast_r50", {"beta_inverse": 7}, "beta_inverse 7: give a divisor of 64"),
        ("slowfast_tiny", {"beta_inverse": 16}, "beta_inverse 16: give a divisor of 8"),
        ("slowfast_r50", {"width": 0}, "width 0: "),
        ("slowfast_r50", {"fusion_kernel": 4}, "fusion_kernel 4: "),
        ("slowfast_r50", {"temporal_blocks_res4": (6,)}, "give two numbers up to 6"),
        ("slowfast_r50", {"temporal_blocks_res4": (-1, 6)}, "give two numbers up to 6"),
        ("i3d_r50", {"depth": 18}, r"depth 18: choose one of \[26, 50, 101\]"),
        ("i3d_r50", {"nonlocal_kind": "gauss"}, "nonlocal_kind 'gauss': "),
        ("i3d_r50", {"aplha": 4}, "it takes depth, dropout"),
    ],
)
def test_wrong_options(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(name, num_classes=2, **options)


def test_slowfast_options_change_the_model() -> None:
    model = build_model("slowfast_r50", num_classes=2, alpha=2, fusion_kernel=5, beta_inverse=4)
    assert model.s1_fuse.conv_f2s.weight.shape == (32, 16, 5, 1, 1)
    assert model.s1_fuse.conv_f2s.stride == (2, 1, 1)


def test_a_narrow_slowfast_has_every_layer_in_proportion() -> None:
    """Channels by ``width``; the depth and the names of the layers are their own."""
    with torch.device("meta"):
        full = build_model("slowfast_r50", num_classes=2, depth=26, beta_inverse=4)
        narrow = build_model("slowfast_r50", num_classes=2, depth=26, beta_inverse=4, width=16)
    sizes = {name: value.shape for name, value in narrow.state_dict().items()}
    for name, value in full.state_dict().items():
        ratios = {a // b for a, b in zip(value.shape, sizes[name], strict=True)}
        assert ratios <= {1, 4}, name
        assert value.ndim == 0 or 4 in ratios or name == "head.projection.bias", name


def test_slowfast_tiny_is_one_for_a_cpu() -> None:
    model = build_model("slowfast_tiny", num_classes=8)
    blocks = [module for module in model.modules() if isinstance(module, Bottleneck)]
    assert (len(blocks), num_parameters(model)) == (16, 357_398)
    assert multiply_adds(model, Shape(8, 96, 96)) == 86_006_272
    assert find_model("slowfast_tiny").rule({}).frame_multiple == 2  # T/4 of eight frames
