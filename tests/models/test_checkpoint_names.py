"""Keys of other projects, by rule and as published."""

from __future__ import annotations

import zlib

import pytest
import torch

from tests.models.checkpoints import HUB_MODELS, pytorchvideo_state
from vcycle.models import build_model
from vcycle.models.checkpoint_names import from_pytorchvideo


@pytest.mark.parametrize(("name", "blocks", "checksum"), HUB_MODELS)
def test_names_and_shapes_are_those_of_pytorchvideo(
    name: str, blocks: tuple[int, ...], checksum: int
) -> None:
    with torch.device("meta"):
        model = build_model(name, num_classes=400)
    state = pytorchvideo_state(model, blocks)
    lines = sorted(f"{key} {list(value.shape)}" for key, value in state.items())
    assert zlib.crc32("\n".join(lines).encode()) == checksum
    names = from_pytorchvideo(state)
    assert list(names.values()) == list(model.state_dict())


def test_pytorchvideo_names_as_published() -> None:
    """Some keys of the hub's slowfast_r50, written out."""
    names = from_pytorchvideo(
        [
            "blocks.0.multipathway_blocks.1.conv.weight",
            "blocks.0.multipathway_fusion.conv_fast_to_slow.weight",
            "blocks.3.multipathway_fusion.norm.running_var",
            "blocks.1.multipathway_blocks.0.res_blocks.0.branch1_norm.bias",
            "blocks.2.multipathway_blocks.0.res_blocks.0.branch1_conv.weight",
            "blocks.3.multipathway_blocks.1.res_blocks.5.branch2.norm_c.weight",
            "blocks.4.multipathway_blocks.0.res_blocks.2.branch2.conv_b.weight",
            "blocks.6.proj.bias",
            "blocks.5.unknown.weight",
        ]
    )
    assert list(names.values()) == [
        "s1.pathway1_stem.conv.weight",
        "s1_fuse.conv_f2s.weight",
        "s4_fuse.bn.running_var",
        "s2.pathway0_res0.branch1_bn.bias",
        "s3.pathway0_res0.branch1.weight",
        "s4.pathway1_res5.branch2.c_bn.weight",
        "s5.pathway0_res2.branch2.b.weight",
        "head.projection.bias",
        None,
    ]
