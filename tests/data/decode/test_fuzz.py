"""Valid files with mutated bytes: whatever is in them, a clip or one line of refusal comes out.

A few hundred mutations here; thousands by hand with VCYCLE_FUZZ=5000.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.encode import encode, numbered_frames
from tests.processes import PATIENCE
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import GridRange, draw_grid
from vcycle.data.metadata import Location, VideoInfo
from vcycle.datasets.parallel import Failed, run_jobs
from vcycle.schedule.shape import Shape

NUM_MUTATIONS = int(os.environ.get("VCYCLE_FUZZ", "60"))  # of each of the files
RANGE = GridRange(Shape(4, 32, 32), 2, (37, 49))


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals")
    frames = numbered_frames(24, 48, 64)
    return [
        encode(folder / "h264.mp4", frames, gop=8, options={"crf": "30"}),
        encode(folder / "h264.mkv", frames, gop=8, options={"crf": "30", "bf": "3"}),
        encode(folder / "intra.mp4", frames, gop=1, options={"crf": "30"}),
        encode(folder / "vp9.webm", frames, codec="libvpx-vp9", gop=8),
        encode(folder / "mpeg4.avi", frames, codec="mpeg4", gop=8),
        encode(folder / "h264.ts", frames, gop=8, options={"crf": "30"}),
    ]


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """Flips bytes, cuts, repeats or erases pieces; headers are hit as often as frames."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 6))):
        limit = len(data) if rng.random() < 0.5 else min(len(data), 1500)
        start = int(rng.integers(limit))
        end = min(start + int(rng.integers(1, 64)), len(data))
        kind = rng.integers(4)
        if kind == 0:
            data[start:end] = rng.integers(0, 256, end - start, dtype=np.uint8).tobytes()
        elif kind == 1:
            data[start] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            del data[start:end]
        else:
            data[start:start] = data[start:end]
        if not data:
            return b""
    return bytes(data)


def attempt(folder, originals, job):
    """In a process of its own: what a loader would do with the file, by either file's probe."""
    which, number = job
    original = originals[which]
    rng = np.random.default_rng([which, number])
    place = Location(str(folder / f"{which}-{number}{original.suffix}"))
    Path(place.uri).write_bytes(mutate(original.read_bytes(), rng))
    all_key_frames = "intra" in original.name
    known = VideoInfo(num_frames=24, frame_rate=10, duration_seconds=2.4, width=64, height=48)
    try:
        return [
            outcome_of(place, rng, lambda: probe(place), all_key_frames=False),
            outcome_of(place, rng, lambda: known, all_key_frames=all_key_frames),
        ]
    finally:
        Path(place.uri).unlink()


def outcome_of(place, rng, info, *, all_key_frames):
    try:
        grid = draw_grid(info(), RANGE.base, RANGE, rng=rng, flip=True)
        clip = read_clip(place, grid, all_key_frames=all_key_frames, limit_seconds=300)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return clip.shape


def test_no_mutation_crashes_hangs_or_escapes(originals, tmp_path):
    jobs = [(which, k) for which in range(len(originals)) for k in range(NUM_MUTATIONS)]
    clips = refusals = 0
    for job, outcomes in run_jobs(
        partial(attempt, tmp_path, originals),
        jobs,
        num_workers=1,
        limit_seconds=lambda job: PATIENCE,
    ):
        assert not isinstance(outcomes, Failed), f"{originals[job[0]].name} {job}: {outcomes}"
        for outcome in outcomes:
            if outcome == (4, 32, 32, 3):
                clips += 1
            else:
                assert outcome.startswith("UnreadableVideo: "), f"{job}: {outcome}"
                assert "\n" not in outcome
                refusals += 1
    assert clips > len(jobs) / 4  # most damage is survivable
    assert refusals > len(jobs) / 20
