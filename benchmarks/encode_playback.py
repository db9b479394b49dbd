"""Make a set of real clips whose classes only the order and the speed of frames tell apart.

    python benchmarks/encode_playback.py DIR/weizmann10 DIR/playback

In: a folder of videos, of any depth. Out: each of them three times, as forwards/NAME.mp4,
backwards/NAME.mp4, whose frames are in the opposite order, and fast/NAME.mp4, of every second one.
What is there stays.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

import av

from vcycle.data.atomic import atomic
from vcycle.data.decode.encode import encode_video_frames

PLAYED = {"forwards": slice(None), "backwards": slice(None, None, -1), "fast": slice(None, None, 2)}
"""The frames of a video, by class."""
_SUFFIXES = (".avi", ".mp4")


def encode_once(
    out: Path, frames: Iterable[av.VideoFrame], *, frame_rate: int, quality: int
) -> None:
    """Encode frames, each a key frame, unless the file is there."""
    if out.exists():
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic(out) as partial:
        encode_video_frames(
            partial,
            frames,
            frame_rate=Fraction(frame_rate),
            key_interval=1,
            quality=quality,
            preset="veryfast",
        )


def main() -> None:
    """Encode the clips that are not there yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("videos", type=Path, help="the folder of videos")
    parser.add_argument("out", type=Path, help="gets a folder a class")
    options = parser.parse_args()
    videos = sorted(each for each in options.videos.rglob("*") if each.suffix in _SUFFIXES)
    if not videos:
        parser.error(f"{options.videos}: no videos *.avi or *.mp4 in it")
    if len({video.stem for video in videos}) < len(videos):
        parser.error(f"{options.videos}: two videos of one name; rename one of them")
    for video in videos:
        with av.open(str(video)) as container:
            frames = [*container.decode(video=0)]
        for name, played in PLAYED.items():
            out = options.out / name / f"{video.stem}.mp4"
            encode_once(out, frames[played], frame_rate=25, quality=18)
    print(f"{len(PLAYED) * len(videos)} clips in {options.out}")


if __name__ == "__main__":
    main()
