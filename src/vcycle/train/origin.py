"""What started a run, and on what: a row of ``starts.jsonl`` each time that it starts or goes on.

In: the first step that is to be done. Out: plain values for JSON: command, versions, devices.
"""

from __future__ import annotations

import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from vcycle.devices.fabric import Fabric

PACKAGES = ("vcycle", "torch", "av", "torchcodec", "lightning-fabric", "numpy")


def origin(fabric: Fabric, *, first_step: int) -> dict[str, Any]:
    """The row of this start: the command as the interpreter got it, and what it runs on."""
    device = "cpu"
    if fabric.device.type == "cuda":
        device = torch.cuda.get_device_name(fabric.device)
    return {
        "step": first_step,
        "command": shlex.join(sys.orig_argv),
        "versions": versions(),
        "device": device,
        "processes": fabric.world_size,
    }


def versions() -> dict[str, str | None]:
    """Of Python and the packages that decide a run; None for one that is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
