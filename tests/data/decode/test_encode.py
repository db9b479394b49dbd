"""What is encoded decodes fast, to the same frames, and is the same bytes each time."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest

from tests.encode import numbered_frames
from vcycle.data.decode.encode import encode_frames, encode_video_frames
from vcycle.data.decode.probe import probe
from vcycle.data.metadata import Location


@pytest.mark.parametrize("key_interval", [1, 5])
def test_frames_come_back_with_key_frames_as_asked_for(tmp_path, key_interval):
    frames = numbered_frames(12)
    settings = {"frame_rate": 10, "key_interval": key_interval, "quality": 10}
    for name in ("a.mp4", "b.mp4"):
        encode_frames(tmp_path / name, frames, **settings)
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    info = probe(Location(str(tmp_path / "a.mp4")))
    assert (info.num_frames, info.frame_rate, info.key_interval) == (12, 10, key_interval)
    with av.open(str(tmp_path / "a.mp4")) as container:
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert not container.streams.video[0].codec_context.has_b_frames
    assert np.abs(np.stack(decoded).astype(int) - frames).mean() < 6
    content = (tmp_path / "a.mp4").read_bytes()
    assert content.index(b"moov") < content.index(b"mdat")  # for range reads


def test_the_number_of_frames_is_returned(tmp_path):
    settings = {"frame_rate": Fraction(30000, 1001), "key_interval": 1, "quality": 20}
    frames = [av.VideoFrame.from_ndarray(rgb, format="rgb24") for rgb in numbered_frames(7)]
    path = tmp_path / "v.mp4"
    assert encode_video_frames(path, frames, preset="veryfast", **settings) == 7
    assert probe(Location(str(path))).frame_rate == pytest.approx(29.97, abs=1e-3)
