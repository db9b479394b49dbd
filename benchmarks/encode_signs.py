"""Make the study's ``isl_emergency8`` of the images that are published of it.

    python benchmarks/encode_signs.py Image_Data DIR/isl_emergency8

In: the folder ``Image_Data`` that docs/study.md names, with an image a frame:
SIGN/colored_SIGN_PERSON_TAKE_FRAME_image.png. Out: SIGN/pPERSON_SIGN_tTAKE.mp4, grey, 128 x 128
pixels, 5 frames a second in the order of their numbers, each a key frame. What is there stays.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
from PIL import Image

from encode_playback import encode_once

_NAME = re.compile(r"colored_([a-z]+)_(\d+)_(\d+)_(\d+)_image\.png")
_SIZE = (128, 128)


def images_by_clip(images: Path) -> dict[Path, list[Path]]:
    """The images of each clip in the order of their numbers, by the name of its file."""
    found: dict[Path, dict[int, Path]] = defaultdict(dict)
    for path in sorted(images.glob("*/*.png")):
        if name := _NAME.fullmatch(path.name):
            sign, person, take, frame = name.groups()
            found[Path(sign, f"p{person}_{sign}_t{take}.mp4")][int(frame)] = path
    return {clip: [path for _, path in sorted(found[clip].items())] for clip in sorted(found)}


def frames_of(paths: list[Path]) -> Iterator[av.VideoFrame]:
    """Images as grey frames of one size."""
    for path in paths:
        with Image.open(path) as image:
            grey = image.convert("L").resize(_SIZE)
            yield av.VideoFrame.from_ndarray(np.asarray(grey), format="gray")


def main() -> None:
    """Encode the clips that are not there yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path, help="the folder Image_Data")
    parser.add_argument("out", type=Path, help="gets a folder a sign")
    options = parser.parse_args()
    clips = images_by_clip(options.images)
    if not clips:
        parser.error(f"{options.images}: no images SIGN/colored_SIGN_PERSON_TAKE_FRAME_image.png")
    for clip, paths in clips.items():
        encode_once(options.out / clip, frames_of(paths), frame_rate=5, quality=23)
    print(f"{len(clips)} clips in {options.out}")


if __name__ == "__main__":
    main()
