"""Clips from decoded frames: those of the project's own data path, on any request."""

from __future__ import annotations

import av
import numpy as np
import pytest
import torch

import vcycle
from vcycle.data.decode.resample import crop_and_scale
from vcycle.data.grid import View
from vcycle.data.request import ClipRequest, StepPart
from vcycle.demo.videos import write_videos
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.plan import Step
from vcycle.schedule.shape import Shape

LUMA = torch.tensor([0.299, 0.587, 0.114])
BASELINE = Baseline(Shape(8, 64, 64), 8, 10, 10, LearningRate(0.1))


def request_for(shape, *, seed=1, index=0):
    return ClipRequest(index, shape, seed, part=StepPart(Step(0, 0, shape, 8, 0.1, 8, 0), BASELINE))


def decoded(path):
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    return torch.from_numpy(np.stack(frames))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return write_videos(folder, train_videos=3, val_videos=1, num_workers=1)


@pytest.mark.parametrize("view", [None, View(1, 3, 2, 3)])
def test_pixels_are_those_of_the_own_data_path(manifest, view):
    """PyAV scales luma and chroma before it converts them, so pixels differ by rounding."""
    videos = manifest.split("train")
    grids = vcycle.GridRange(BASELINE.shape, 2, (66, 90), frame_rate=20)
    for index, video in enumerate(videos.videos):
        frames = decoded(videos.locate(video).uri)
        assert len(frames) == video.num_frames
        for shape in (Shape(8, 64, 64), Shape(3, 40, 24)):
            request = ClipRequest(index, shape, seed=5 + index, view=view)
            ours = vcycle.ClipDataset(videos, grids)[request].pixels
            clip = vcycle.to_shape(
                frames, request, grids, frame_rate=video.frame_rate, flip=video.flip
            )
            assert clip.shape == (*request.clip_shape[:3], 3)
            assert clip.dtype == torch.uint8
            difference = clip.float() - ours.float()  # chroma has half the lines and columns
            assert difference.abs().mean() < 5
            assert (difference @ LUMA).abs().mean() < 1.5
            assert difference.mean().abs() < 0.5


def test_the_grid_is_the_requests_own(manifest):
    """Brute force: the frames and the box that ``request.grid`` names, scaled by torch."""
    video = manifest.split("train").videos[0]
    frames = decoded(manifest.locate(video).uri)
    for seed in range(8):
        request = request_for(Shape(4, 32, 32), seed=seed)
        grid = request.grid(video)
        expected = crop_and_scale(frames[list(grid.frames)], grid)
        assert torch.equal(vcycle.to_shape(frames, request), expected)
        assert torch.equal(vcycle.to_shape(frames.numpy(), request), expected)


def test_coarse_clips_may_span_as_much_as_fine_ones():
    """The default range: strides from 1 to T / t of the plan's base shape, sides as the paper's."""
    frames = torch.arange(64, dtype=torch.uint8).view(64, 1, 1, 1).expand(64, 80, 100, 3)
    steps = set()
    for seed in range(60):
        clip = vcycle.to_shape(frames, request_for(Shape(2, 16, 16), seed=seed))
        steps.add(int(clip[1, 0, 0, 0]) - int(clip[0, 0, 0, 0]))
    assert steps == {1, 2, 3, 4}
    default = request_for(Shape(2, 16, 16)).grid_range()
    assert (default.base, default.stride) == (BASELINE.shape, 1)
    assert default.short_side == pytest.approx((64 * 256 / 224, 64 * 340 / 224))
    assert ClipRequest(0, Shape(4, 32, 32), 0).grid_range().base == Shape(4, 32, 32)


def test_short_clips_and_mirrors():
    frames = torch.zeros(1, 20, 30, 3, dtype=torch.uint8)
    frames[:, :, :15] = 255
    seen = {vcycle.to_shape(frames, request_for(Shape(8, 64, 64), seed=s)).shape for s in range(3)}
    assert seen == {(8, 64, 64, 3)}
    seeds = range(20)
    first = [vcycle.to_shape(frames, request_for(Shape(8, 64, 64), seed=s)) for s in seeds]
    fixed = [
        vcycle.to_shape(frames, request_for(Shape(8, 64, 64), seed=s), flip=False) for s in seeds
    ]
    mirrored = [not torch.equal(a, b) for a, b in zip(first, fixed, strict=True)]
    assert 0 < sum(mirrored) < 20
    assert all(
        torch.equal(a, b.flip(2)) for a, b, m in zip(first, fixed, mirrored, strict=True) if m
    )


@pytest.mark.parametrize(
    ("clip", "message"),
    [
        (
            torch.zeros(4, 8, 8, 3),
            r"clip torch.float32 \(4, 8, 8, 3\): give decoded frames, .*; "
            r"here: \(clip \* 255\).round\(\).to\(torch.uint8\)$",
        ),
        (torch.zeros(4, 3, 8, 8, dtype=torch.uint8), r"; here: clip.permute\(0, 2, 3, 1\)$"),
        (torch.zeros(3, 4, 8, 8), r"; here: \(clip .*\(torch.uint8\).permute\(1, 2, 3, 0\)$"),
        (np.zeros((3, 4, 8, 8)), r"; here: .*\(numpy.uint8\).transpose\(1, 2, 3, 0\)$"),
        (torch.zeros(4, 8, 8, 1, dtype=torch.uint8), r"of shape \(T, H, W, 3\)$"),
        (torch.zeros(0, 8, 8, 3, dtype=torch.uint8), r"\(0, 8, 8, 3\)"),
        (torch.zeros(8, 8, 3, dtype=torch.uint8), r"\(8, 8, 3\)"),
    ],
)
def test_what_is_no_decoded_video_is_refused(clip, message):
    with pytest.raises(ValueError, match=message):
        vcycle.to_shape(clip, request_for(Shape(2, 16, 16)))


@pytest.mark.parametrize("clip", [[torch.zeros(8, 8, 3)], None, "clip.mp4"])
def test_what_is_no_tensor_or_array_is_refused(clip):
    with pytest.raises(TypeError, match=f"clip {type(clip).__name__}: give decoded frames as one"):
        vcycle.to_shape(clip, request_for(Shape(2, 16, 16)))


def test_arrays_that_torch_cannot_share_are_copied(tmp_path):
    """Mirrored channels, as OpenCV's frames have them, and files that are mapped read-only."""
    frames = np.random.default_rng(0).integers(256, size=(4, 80, 90, 3), dtype=np.uint8)
    np.save(tmp_path / "frames.npy", frames)
    mapped = np.load(tmp_path / "frames.npy", mmap_mode="r")
    request = request_for(Shape(2, 16, 16))
    expected = vcycle.to_shape(torch.from_numpy(frames), request)
    assert torch.equal(vcycle.to_shape(mapped, request), expected)
    mirrored = np.ascontiguousarray(frames[..., ::-1])[..., ::-1]
    assert torch.equal(vcycle.to_shape(mirrored, request), expected)


def test_a_grid_range_around_another_shape_than_the_plans_is_refused():
    frames = torch.zeros(4, 80, 90, 3, dtype=torch.uint8)
    grids = vcycle.GridRange(Shape(32, 224, 224), 2, (256, 340))
    with pytest.raises(ValueError, match=r"grid range around 32x224x224: .* base shape is 8x64x64"):
        vcycle.to_shape(frames, request_for(Shape(2, 16, 16)), grids)


def test_rates_and_requests_are_asked_for():
    frames = torch.zeros(4, 8, 8, 3, dtype=torch.uint8)
    grids = vcycle.GridRange(BASELINE.shape, 2, (66, 90), frame_rate=20)
    with pytest.raises(ValueError, match=r"frame_rate: the grid range counts frames at 20"):
        vcycle.to_shape(frames, request_for(Shape(2, 16, 16)), grids)
    with pytest.raises(TypeError, match="index int: this dataset is indexed with a ClipRequest"):
        vcycle.to_shape(frames, 3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_clips_on_the_gpu_are_those_on_the_cpu():
    frames = torch.randint(0, 256, (20, 90, 120, 3), dtype=torch.uint8)
    request = request_for(Shape(4, 32, 32))
    there = vcycle.to_shape(frames.cuda(), request)
    assert there.is_cuda
    here = vcycle.to_shape(frames, request)
    assert (there.cpu().int() - here.int()).abs().max() <= 1
