"""Where and of which code a study's run was: its machine and its commit, as rows name them."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import torch


def machine(*, on_gpu: bool) -> str:
    """This machine's GPU, or one thread of its processor."""
    if on_gpu:
        return torch.cuda.get_device_name()
    return f"{processor()}, one thread, {platform.system()} {platform.machine()}"


def processor() -> str:
    """The name of this machine's CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def is_of_cpu(row: dict[str, Any]) -> bool:
    """Whether a row's run was carried out on a CPU, by the name of its ``machine``."""
    return ", one thread," in row["machine"]


def commit() -> str:
    """The commit of this code, with + if files differ from it."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "../src", ".")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
