"""What numbers a run computes in: a precision's name becomes settings of torch and Fabric.

In: ``RunConfig.precision`` and the kind of device. Out: torch's switches for TF32, set; Fabric's
plugin. The plugin of ``16-mixed`` holds the gradient scaler, whose state a checkpoint keeps.
"""

from __future__ import annotations

from typing import Literal

import torch

from vcycle.devices.fabric import MixedPrecision, Precision

Name = Literal["32-true", "tf32", "bf16-mixed", "16-mixed"]

_TRIED_IN_BFLOAT16 = ("resnet3d_tiny",)
"""Networks that the study (docs/results.md) trained to the same loss in it."""
_INSTRUCTIONS = ("amx_bf16", "avx512_bf16")
"""Of CPUs, by torch's names: with either, steps take less time in bfloat16."""


def fastest_precision(model: str, *, least_frames: int) -> Name:
    """What ``model`` trains fastest in on this machine, of what is known to do no harm.

    TF32 on a GPU, in which torch by itself computes convolutions there; one without it computes in
    float32 all the same. On a CPU with instructions for it bfloat16, which was shown to come to the
    same loss, and float32 on others, and if any clip has fewer than two frames, ``least_frames``:
    there torch 2.13 convolves few channels in bfloat16 over memory that nobody wrote, which may
    hold what is not a number.
    """
    if torch.cuda.is_available():
        return "tf32"
    if model not in _TRIED_IN_BFLOAT16 or least_frames < 2:
        return "32-true"
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return "bf16-mixed" if any(map(capabilities.get, _INSTRUCTIONS)) else "32-true"


def set_precision(name: Name, device: Literal["cpu", "cuda"]) -> Precision:
    """Set torch's switches and return the plugin of a precision.

    Whatever is not under autocast is strict float32, in convolutions too, which torch by itself
    computes in TF32; only ``tf32`` allows that. CPUs have no TF32: there the name changes nothing.
    """
    with_tf32 = name == "tf32" and device == "cuda"
    torch.set_float32_matmul_precision("high" if with_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = with_tf32
    if name == "bf16-mixed":
        return MixedPrecision("bf16-mixed", device)
    if name == "16-mixed":
        return MixedPrecision("16-mixed", device, torch.amp.GradScaler(device))
    return Precision()
