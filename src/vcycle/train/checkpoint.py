"""Checkpoints: what a run needs to go on, and what others need to use its model.

A checkpoint is a plain dictionary of tensors and numbers, written at once and read with
``weights_only=True``. Random state is not in it: every draw of a run is indexed by its step.
"""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcycle.config.run import RunConfig
from vcycle.data.manifest import Manifest
from vcycle.evaluate.checkpoint import FORMAT


def save_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    next_step: int,
    seconds: float,
    config: RunConfig,
    manifest: Manifest,
) -> None:
    """Write the state after ``next_step`` steps, with what it takes to build the model again."""
    partial = path.with_name(f".{path.name}.partial")
    state = {
        "format": FORMAT,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "next_step": next_step,
        "seconds": seconds,
        "model_name": config.model.name,
        "model_options": config.model.options,
        "shape": str(config.baseline.shape),
        "classes": list(manifest.classes),
        "videos": _digest(manifest),
    }
    try:
        torch.save(state, partial)
    except RuntimeError as error:  # which tells where torch's writer was, not what stopped it
        partial.unlink(missing_ok=True)
        reason = "could not be written; make room on the disk"
        raise OSError(errno.EIO, reason, str(path)) from error
    partial.replace(path)


def _digest(manifest: Manifest) -> str:
    """Of all that decides which clip a sample position is."""
    digest = hashlib.sha256()
    for video in manifest.videos:
        digest.update(f"{video.path}\0{video.split}\0{video.labels}\n".encode())
    return digest.hexdigest()


def check_videos(state: dict[str, Any], manifest: Manifest) -> None:
    """Raise ValueError unless ``manifest`` lists the videos that the checkpoint was trained on."""
    if state["videos"] != _digest(manifest):
        raise ValueError(
            f"manifest in {manifest.root}: its videos are not those that the run began with; "
            f"resume with that manifest, or start a run from these weights"
        )
