"""Clips of datasets that hold others, as torch's Subset and ConcatDataset do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split

import vcycle
from tests.data.test_collate import PLAN, Frames
from vcycle.data.request import ClipRequest
from vcycle.data.sampler import view_requests
from vcycle.demo.videos import write_videos
from vcycle.schedule.shape import Shape

GRID_RANGE = vcycle.GridRange(Shape(4, 32, 32), 1, (36, 48))


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return write_videos(folder, train_videos=6, val_videos=2, num_workers=1).split("train")


def test_clip_datasets_that_are_joined_and_cut(videos):
    dataset = vcycle.ClipDataset(videos, GRID_RANGE)
    joined = vcycle.ClipsOf(ConcatDataset([Subset(dataset, [4, 1]), dataset, Subset(dataset, [5])]))
    of_dataset = [4, 1, *range(6), 5]
    assert len(joined) == len(of_dataset)
    for index, inner in enumerate(of_dataset):
        request = ClipRequest(index, Shape(2, 16, 16), 7)
        clip = joined[request]
        expected = dataset[replace(request, index=inner)]
        assert torch.equal(clip.pixels, expected.pixels)
        assert (clip.label, clip.request, clip.index) == (expected.label, request, index)


def test_a_loader_takes_them(videos):
    dataset = vcycle.ClipDataset(videos, GRID_RANGE)
    joined = vcycle.ClipsOf(ConcatDataset(random_split(dataset, [2, 4]) * 2))
    sampler = vcycle.PlanSampler(PLAN, len(joined), 0)
    loader = DataLoader(joined, batch_sampler=sampler, collate_fn=vcycle.collate)
    assert [batch.step for batch in loader] == list(PLAN)


def test_a_bad_videos_substitute_is_of_the_same_subset(videos):
    broken = replace(videos.videos[0], path="gone.mp4")
    manifest = replace(videos, videos=(broken, *videos.videos[1:]))
    dataset = vcycle.ClipDataset(manifest, GRID_RANGE)
    joined = vcycle.ClipsOf(ConcatDataset([dataset, Subset(dataset, [0, 3])]))
    clip = joined[ClipRequest(6, Shape(2, 16, 16), 7)]
    assert (clip.index, bool(clip.bad)) == (7, True)
    (view,) = (r for r in view_requests(8, Shape(2, 16, 16)) if r.index == 6)
    assert joined[view].index == -1


def test_clips_of_that_are_joined_and_cut():
    whole = vcycle.ClipsOf(Frames(), num_classes=5)
    joined = vcycle.ClipsOf(ConcatDataset([whole, vcycle.ClipsOf(Subset(whole, [9, 2]))]))
    request = ClipRequest(13, Shape(2, 16, 16), 7)
    assert torch.equal(joined[request].pixels, whole[replace(request, index=2)].pixels)
    with pytest.raises(ValueError, match=r"Subset of 2 datasets .* of a Subset of each"):
        vcycle.ClipsOf(Subset(joined, [13, 2]))


def test_what_its_datasets_have_of_their_own_is_refused():
    for given in ({"flip": False}, {"num_classes": 5}, {"grid_range": GRID_RANGE}):
        with pytest.raises(ValueError, match="flip and num_classes are those of each ClipsOf in"):
            vcycle.ClipsOf(ConcatDataset([vcycle.ClipsOf(Frames())]), **given)


def test_datasets_of_other_classes_and_pairs_beside_them_are_refused(videos):
    dataset = vcycle.ClipDataset(videos, GRID_RANGE)
    other = replace(videos, classes=tuple(reversed(videos.classes)))
    with pytest.raises(
        ValueError, match=r"ClipDatasets are of different classes; index .* together"
    ):
        vcycle.ClipsOf(ConcatDataset([dataset, vcycle.ClipDataset(other, GRID_RANGE)]))
    with pytest.raises(ValueError, match=r"and of pairs: give it ClipsOf\(pairs\)"):
        vcycle.ClipsOf(ConcatDataset([dataset, Frames()]))
    assert len(vcycle.ClipsOf(ConcatDataset([dataset, vcycle.ClipsOf(Frames())]))) > len(dataset)


def test_our_loader_is_for_our_datasets():
    frames = torch.zeros(4, 16, 16, 3, dtype=torch.uint8)
    own = vcycle.ClipsOf([(frames, 0)] * PLAN.baseline.num_videos, num_classes=1)
    with pytest.raises(TypeError, match="ClipsOf: this loader takes a ClipDataset; give your own"):
        vcycle.train_loader(own, vcycle.PlanSampler(PLAN, len(own), seed=0), num_workers=0)
