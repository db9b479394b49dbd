"""Clip requests: the same request gives the same clip, and bad videos are replaced in the open."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import vcycle
from vcycle.data.bad_videos import TooManyBadVideos
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange, View
from vcycle.data.manifest import Manifest
from vcycle.data.request import ClipRequest
from vcycle.demo.videos import write_videos
from vcycle.schedule.shape import Shape

RANGE = GridRange(Shape(8, 64, 64), 2, (73, 97))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return write_videos(
        tmp_path_factory.mktemp("videos"), train_videos=12, val_videos=1, num_workers=1
    ).split("train")


def broken(manifest: Manifest, tmp_path, *indices: int) -> Manifest:
    """The manifest with some videos' files replaced by a text file."""
    (tmp_path / "text.mp4").write_text("no video")
    videos = list(manifest.videos)
    for i in indices:
        videos[i] = dataclasses.replace(videos[i], path=f"file://{tmp_path}/text.mp4")
    return dataclasses.replace(manifest, videos=tuple(videos))


@pytest.mark.parametrize("shape", [Shape(8, 64, 64), Shape(4, 45, 45), Shape(1, 32, 48)])
def test_a_request_has_the_shape_asked_for_and_the_label(manifest, shape):
    for index in range(12):
        clip = ClipDataset(manifest, RANGE)[ClipRequest(index, shape, seed=index)]
        assert clip.pixels.shape == (shape.frames, shape.height, shape.width, 3)
        assert (clip.index, clip.labels, clip.bad) == (index, manifest.videos[index].labels, ())


def test_the_seed_decides_the_clip(manifest):
    dataset = ClipDataset(manifest, RANGE)
    shape = Shape(4, 45, 45)
    one = dataset[ClipRequest(0, shape, seed=2**63 + 1)].pixels
    assert np.array_equal(one, dataset[ClipRequest(0, shape, seed=2**63 + 1)].pixels)
    assert not np.array_equal(one, dataset[ClipRequest(0, shape, seed=2**63 + 2)].pixels)
    view = dataset[ClipRequest(0, shape, 5, View())].pixels
    assert np.array_equal(view, dataset[ClipRequest(0, shape, 6, View())].pixels)


def test_a_view_of_a_bad_video_belongs_to_no_video(manifest, tmp_path):
    """Its pixels are another's: a loop that adds up scores by index must not take them for it."""
    dataset = ClipDataset(broken(manifest, tmp_path, 3), RANGE)
    requests = vcycle.view_requests(len(dataset), Shape(2, 32, 32), num_clips=2)
    loader = DataLoader(dataset, sampler=requests, batch_size=6, collate_fn=vcycle.collate)
    indices = torch.cat([batch.indices for batch in loader]).tolist()
    assert indices == [-1 if index == 3 else index for index in range(12) for _ in range(2)]


def test_an_index_beyond_the_videos_is_named(manifest):
    with pytest.raises(IndexError, match=r"video 12: the dataset has 12; give PlanSampler len"):
        _ = ClipDataset(manifest, RANGE)[ClipRequest(12, Shape(2, 32, 32), 0)]


def test_a_bad_video_is_replaced_reproducibly_and_named(manifest, tmp_path):
    dataset = ClipDataset(broken(manifest, tmp_path, 3, 4), RANGE)
    shape = Shape(4, 45, 45)
    seen = set()
    for seed in range(20):
        clip = dataset[ClipRequest(3, shape, seed)]
        again = dataset[ClipRequest(3, shape, seed)]
        assert clip.index == again.index
        assert np.array_equal(clip.pixels, again.pixels)
        assert clip.index not in (3, 4)
        assert clip.labels == manifest.videos[clip.index].labels
        assert clip.bad[0].path.endswith("text.mp4")
        assert "Invalid data" in clip.bad[0].reason
        seen.add(clip.index)
    assert len(seen) > 5


def test_a_dataset_of_bad_videos_gives_up(manifest, tmp_path):
    dataset = ClipDataset(broken(manifest, tmp_path, *range(12)), RANGE)
    with pytest.raises(TooManyBadVideos, match=r"(?s)21 attempts; restore them, .*text\.mp4"):
        dataset[ClipRequest(0, Shape(1, 32, 32), 0)]


def test_a_decode_beyond_the_time_limit_is_a_bad_video(manifest):
    dataset = ClipDataset(manifest, RANGE, limit_seconds=0)
    with pytest.raises(TooManyBadVideos, match="longer than"):
        dataset[ClipRequest(0, Shape(1, 32, 32), 0)]


def test_timed_labels_are_those_of_the_clip_in_training_and_all_in_evaluation(manifest):
    video = manifest.videos[0]
    end = video.duration_seconds
    timed = dataclasses.replace(video, labels=(3, 5), spans=((0, end / 4), (end * 0.7, end)))
    dataset = ClipDataset(dataclasses.replace(manifest, videos=(timed,)), RANGE)
    shape = Shape(2, 32, 32)
    seen = set()
    for seed in range(60):
        request = ClipRequest(0, shape, seed)
        grid = request.grid(timed, RANGE)
        expected = {
            label
            for label, (start, stop) in zip(timed.labels, timed.spans, strict=True)
            if grid.frames[0] / video.frame_rate <= stop
            and grid.frames[1] / video.frame_rate >= start
        }
        assert dataset[request].labels == tuple(sorted(expected))
        seen.add(dataset[request].labels)
    assert {(3,), (), (5,)} <= seen
    assert dataset[ClipRequest(0, shape, 0, View())].labels == (3, 5)


def test_an_unknown_decoder_is_refused(manifest):
    with pytest.raises(ValueError, match="decoder 'opencv': give 'pyav', 'torchcodec' or 'nvdec'"):
        ClipDataset(manifest, RANGE, decoder="opencv")
