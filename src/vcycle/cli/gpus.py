"""``vcycle train --gpus N``: a process on each of N GPUs of this machine.

In: their number and the words of the command. Out: torchrun in place of this process, which starts
the same command N times; or nothing, if this process is one of those or the only one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from vcycle.cli.waiting import starting_pytorch


def check_gpus(number: int) -> None:
    """Raise ValueError unless PyTorch finds so many GPUs on this machine."""
    with starting_pytorch():
        import torch

    found = torch.cuda.device_count()
    if number > found:
        advice = f"give at most {found}" if found else "leave it out to train on the CPU"
        raise ValueError(
            f"--gpus {number}: PyTorch finds {found or 'none'} on this machine; {advice}"
        )
    if number < 1:
        raise ValueError(f"--gpus {number}: give at least 1")


def launch(number: int, words: Sequence[str]) -> NoReturn:
    """Replace this process by torchrun, which starts ``vcycle`` with these words on each GPU."""
    sys.stdout.flush()
    sys.stderr.flush()
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number))
    os.execv(sys.executable, [sys.executable, *torchrun, "-m", "vcycle", *words])
