"""A part becomes pixels in memory and an answer; its errors are in the answer."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange
from vcycle.data.sampler import view_requests
from vcycle.data.workers.parts import Part, decode_part, hang_seconds
from vcycle.demo.videos import write_videos
from vcycle.schedule.shape import Shape

RANGE = GridRange(Shape(4, 32, 32), 2, (37, 49))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("videos")
    videos = write_videos(path, train_videos=3, val_videos=1, num_workers=1).split("train")
    return ClipDataset(videos, RANGE, limit_seconds=10)


def answer_of(dataset, *, bad_indices=None, is_current=lambda part: True, noted=None):
    """The answer to a part of three clips, and the memory with a clip's room at both ends."""
    requests = view_requests(3, RANGE.base)
    size = requests[0].num_bytes
    memory = torch.full((5 * size,), 7, dtype=torch.uint8)
    part = Part(5, 0, size, requests)
    note = (noted if noted is not None else []).append
    answer = decode_part(
        dataset, part, memory, is_current=is_current, note=note, bad_indices=bad_indices or {}
    )
    return answer, memory.view(5, *requests[0].clip_shape)


def test_the_pixels_are_those_of_the_requests(dataset):
    noted = []
    answer, memory = answer_of(dataset, noted=noted)
    requests = view_requests(3, RANGE.base)
    assert torch.equal(memory[1:4], torch.stack([dataset[each].pixels for each in requests]))
    assert (memory[[0, 4]] == 7).all()
    assert (answer.number, answer.error, noted) == (5, "", [0, 1, 2])
    assert [clip.index for clip in answer.clips] == [0, 1, 2]
    assert answer.seconds > 0


def test_a_part_that_was_taken_back_is_not_decoded(dataset):
    answer, memory = answer_of(dataset, is_current=lambda part: False)
    assert (answer.clips, answer.error) == ([], "")
    assert (memory == 7).all()


def test_a_video_known_to_be_bad_is_not_tried(dataset):
    noted = []
    answer, _ = answer_of(dataset, bad_indices={1: "killed its worker"}, noted=noted)
    assert 1 not in noted
    assert answer.clips[1].bad[0].reason == "killed its worker"


def test_errors_are_in_the_answer(dataset):
    answer, _ = answer_of(dataset, bad_indices=dict.fromkeys(range(3), "bad"))
    assert answer.too_many_bad
    assert "no readable video in 21 attempts" in answer.error
    broken = dataclasses.replace(dataset, grid_range=3)
    answer, _ = answer_of(broken)
    assert not answer.too_many_bad
    assert answer.error.startswith("Traceback")


def test_a_decode_hangs_after_half_its_limit_more(dataset):
    assert hang_seconds(dataset, 0) == 15


def test_a_store_has_the_time_to_be_given_up_before_its_video_hangs(dataset):
    remote = dataclasses.replace(dataset.manifest.videos[1], path="http://127.0.0.1:9/a.mp4")
    videos = (dataset.manifest.videos[0], remote)
    mixed = dataclasses.replace(dataset.manifest, videos=videos)
    mixed = dataclasses.replace(dataset, manifest=mixed)
    assert hang_seconds(mixed, 0) == 15
    assert hang_seconds(mixed, 1) == 15 + 300
