"""Reading a checkpoint of ``vcycle train``.

In: its file. Out: a plain dictionary of tensors and numbers. ``vcycle.train.checkpoint`` writes it.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

FORMAT = 1


def load_checkpoint(path: Path, *, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint. Code inside it never runs. Raises ValueError if the file is none."""
    if not path.is_file():
        raise ValueError(f"checkpoint {path}: there is no such file")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "unreadable"
        raise ValueError(f"checkpoint {path}: it is damaged or unsafe ({reason})") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"checkpoint {path}: not a checkpoint of vcycle train")
    return state
