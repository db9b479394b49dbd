"""Time convolutions of clips with fewer frames than kernels have, torch's and ours, on a CPU.

    python benchmarks/short_clips.py > docs/results/short_clips.json

Prints JSON: for models at mini-batches of equally many pixels, the seconds of a forward and a
backward pass with ``nn.Conv3d`` and with ``ShortClipConv3d``, the best of several interleaved ones
of each, on one thread, in channels-last memory and norm groups of at most 8 clips.
"""

from __future__ import annotations

import copy
import json
from functools import partial
from typing import Any

import torch

from norms import GROUP_CLIPS, best_seconds, train_step
from study_provenance import processor
from vcycle.models import build_model, convert_batch_norm, convert_convolutions, set_norm_group
from vcycle.schedule.shape import Shape

BATCHES = (
    ("resnet3d_tiny", 8, "8x96x96"),
    ("resnet3d_tiny", 128, "2x48x48"),
    ("slowfast_tiny", 8, "8x96x96"),
    ("slowfast_tiny", 128, "2x48x48"),
    ("slow_r50", 2, "8x112x112"),
    ("slow_r50", 8, "2x112x112"),
)
REPEATS = 12


def timed(name: str, num_clips: int, text: str) -> dict[str, Any]:
    """Seconds of both for one mini-batch."""
    shape = Shape.parse(text)
    plain = convert_batch_norm(build_model(name, num_classes=10))
    plain.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    set_norm_group(plain, min(GROUP_CLIPS, num_clips))
    models = {"plain": plain, "short_clips": convert_convolutions(copy.deepcopy(plain))}
    clips = torch.randn(num_clips, 3, shape.frames, shape.height, shape.width)
    clips = clips.contiguous(memory_format=torch.channels_last_3d)
    steps = {kind: partial(train_step, model, clips) for kind, model in models.items()}
    seconds = best_seconds(steps, repeats=REPEATS)
    ratio = seconds["short_clips"] / seconds["plain"]
    return {"model": name, "clips": num_clips, "shape": text, **seconds, "ratio": ratio}


def main() -> None:
    """Measure and print."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rows = [timed(*batch) for batch in BATCHES]
    print(json.dumps({"torch": torch.__version__, "device": processor(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
