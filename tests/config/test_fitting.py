"""What fits a network, its videos and the machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.train.measure.times import CONFIG
from vcycle.config.fitting import fitted_span, smaller
from vcycle.config.run import Model
from vcycle.config.user_recipes import scratch
from vcycle.schedule.shape import Shape


@pytest.mark.parametrize(
    ("model", "shape", "flags"),
    [
        ("slowfast_r50", Shape(32, 224, 224), "--model resnet3d_tiny --shape 8x112x112"),
        ("slowfast_r50", Shape(8, 96, 96), "--model resnet3d_tiny --shape 8x96x96"),
        ("resnet3d_tiny", Shape(8, 112, 112), "--shape 4x64x64"),
        ("resnet3d_tiny", Shape(8, 32, 32), "--shape 4x32x32"),
        ("resnet3d_tiny", Shape(4, 32, 32), None),
        ("resnet3d_tiny", Shape(2, 64, 64), None),
    ],
)
def test_a_smaller_choice_is_smaller(model: str, shape: Shape, flags: str | None) -> None:
    baseline = replace(CONFIG.baseline, shape=shape)
    assert smaller(replace(CONFIG, model=Model(model), baseline=baseline)) == flags


@pytest.mark.parametrize(
    ("video_frames", "stride"), [(126, 4), (125, 4), (124, 3), (63, 2), (62, 1), (20, 1)]
)
def test_clips_span_no_more_than_a_typical_video(video_frames: int, stride: int) -> None:
    """32 frames from the first to the last, 31 strides on; with fewer there is no fitting one."""
    config = scratch(num_videos=300)
    config = replace(config, data=replace(config.data, stride=4))
    assert config.baseline.shape.frames == 32
    fitted = fitted_span(config, video_frames, given=(), is_own=True)
    assert fitted.data.stride == stride
    spans_more = any(note.startswith("clips span") for note in fitted.notes)
    assert spans_more == (31 * stride + 1 > video_frames)


def test_a_stride_that_is_given_stays_though_clips_span_more_than_a_typical_video() -> None:
    config = scratch(num_videos=300)
    config = replace(config, data=replace(config.data, stride=4))
    fitted = fitted_span(config, 63, given=("data.stride",), is_own=True)
    assert fitted.data.stride == 4
    (note,) = (note for note in fitted.notes if note.startswith("clips span 125 frames"))
    assert note.endswith("--data.stride 2 fits them")
    followed = replace(fitted, data=replace(fitted.data, stride=2))
    again = fitted_span(followed, 63, given=("data.stride",), is_own=False)
    assert again.notes == config.notes
