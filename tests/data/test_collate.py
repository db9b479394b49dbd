"""A plain DataLoader gives the own loader's batches; a dataset's mistakes are one line each."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torch.utils.data._utils.pin_memory import pin_memory

import vcycle
from tests.data.plans import FakePlan, FakeStep
from vcycle.data.dataset import Clip
from vcycle.data.request import ClipRequest
from vcycle.data.sampler import PlanSampler, view_requests
from vcycle.demo.videos import write_videos
from vcycle.schedule.shape import Shape

PLAN = FakePlan(
    [
        FakeStep(Shape(2, 16, 16), 16, 0),
        FakeStep(Shape(2, 24, 24), 8, 16),
        FakeStep(Shape(4, 32, 32), 4, 24),
        FakeStep(Shape(4, 32, 32), 4, 28),
    ]
)


class Frames(Dataset):
    """(frames, label) by integer index: random frames of various sizes."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        size = (5 + index, 40 + index, 60 - index, 3)
        return rng.integers(0, 256, size, dtype=np.uint8), index % 5


class Answers(Dataset):
    """Whatever a function makes of a request."""

    def __init__(self, answer):
        self.answer = answer

    def __len__(self):
        return 12

    def __getitem__(self, request):
        return self.answer(request)


def batches(dataset, **options):
    sampler = PlanSampler(PLAN, len(dataset), 0)
    return list(DataLoader(dataset, batch_sampler=sampler, collate_fn=vcycle.collate, **options))


def first_batch(answer, plan=PLAN, collate=vcycle.collate):
    dataset = Answers(answer)
    sampler = PlanSampler(plan, len(dataset), 0)
    return next(iter(DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)))


def same(a, b):
    return (
        a.part == b.part
        and torch.equal(a.clips, b.clips)
        and torch.equal(a.labels, b.labels)
        and torch.equal(a.indices, b.indices)
    )


def test_a_plain_loader_gives_what_the_own_one_does(tmp_path):
    manifest = write_videos(tmp_path, train_videos=12, val_videos=2, num_workers=1)
    videos = manifest.split("train")
    dataset = vcycle.ClipDataset(videos, vcycle.GridRange(Shape(4, 32, 32), 1, (36, 48)))
    own = vcycle.train_loader(dataset, PlanSampler(PLAN, 12, 0), num_workers=1)
    for ours, plain in zip(own, batches(dataset), strict=True):
        assert same(ours, plain)
    own.close()
    assert [batch.step for batch in batches(dataset)] == list(PLAN)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_any_kind_give_the_same_batches(start):
    dataset = vcycle.ClipsOf(Frames())
    expected = batches(dataset)
    assert [(len(b), b.shape, b.step) for b in expected] == [
        (step.batch_size, step.shape, step) for step in PLAN
    ]
    loader = DataLoader(
        dataset,
        batch_sampler=PlanSampler(PLAN, 12, 0),
        collate_fn=vcycle.collate,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=start,
    )
    for _ in range(2):
        assert all(same(a, b) for a, b in zip(expected, loader, strict=True))


def test_micro_batches_know_their_part():
    sampler = PlanSampler(PLAN, 12, 0, rank=1, world_size=2, micro_batches=2)
    loader = DataLoader(vcycle.ClipsOf(Frames()), batch_sampler=sampler, collate_fn=vcycle.collate)
    parts = [batch.part for batch in loader]
    assert [part.step.index for part in parts] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [(part.part, part.num_parts, part.is_last) for part in parts[:2]] == [
        (1, 4, False),
        (3, 4, True),
    ]
    assert [len(batch) for batch in loader] == [4, 4, 2, 2, 1, 1, 1, 1]
    assert str(parts[1]) == "step 0, micro-batch 1"


def test_views_of_an_evaluation_belong_to_no_step():
    loader = DataLoader(
        vcycle.ClipsOf(Frames()),
        sampler=view_requests(12, Shape(4, 32, 32), num_clips=2),
        batch_size=5,
        collate_fn=vcycle.collate,
    )
    found = list(loader)
    assert [len(batch) for batch in found] == [5, 5, 5, 5, 4]
    with pytest.raises(ValueError, match="batch: it is an evaluation's and has no step"):
        _ = found[0].step


def test_multi_hot_labels_and_pairs():
    def answer(request):
        frames, label = Frames()[request.index]
        return vcycle.to_shape(frames, request), torch.eye(5)[label]

    batch = first_batch(answer)
    assert batch.labels.dtype == torch.float32
    assert batch.labels.argmax(1).tolist() == [i % 5 for i in batch.indices.tolist()]


def clip_of(request, label=0):
    return Clip(torch.zeros(request.clip_shape, dtype=torch.uint8), label, request)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (lambda r: {"clip": 0}, TypeError, r"returned a dict; return \(vcycle.to_shape"),
        (lambda r: (0, 1, 2), TypeError, r"returned 3 values; collate takes pairs .*of your own"),
        (
            lambda r: (clip_of(r).pixels, 0),
            TypeError,
            r"returned a Tensor that knows no request.*vcycle.Clip\(pixels, label, request\)",
        ),
        (
            lambda r: Clip(clip_of(r).pixels[:1], 0, r),
            ValueError,
            r"clip torch.uint8 \(1, 16, 16, 3\): the request asks for uint8 of shape \(2, 16, 16, "
            r"3\).*return vcycle.to_shape\(frames, request\)",
        ),
        (lambda r: Clip(clip_of(r).pixels.float(), 0, r), ValueError, "clip torch.float32"),
        (lambda r: Clip(np.zeros(r.clip_shape, np.uint8), 0, r), ValueError, "clip uint8"),
        (
            lambda r: clip_of(r, -1),
            ValueError,
            r"label -1 of video \d+: number the classes from 0$",
        ),
        (lambda r: clip_of(r, 0.5), ValueError, "label torch.float32 .*: give a whole number"),
        (
            lambda r: (vcycle.to_shape(Frames()[0][0], r), [3, 2]),
            ValueError,
            r"label torch.int64 \(2,\) of video \d+: give a whole number, the class from 0, or",
        ),
        (lambda r: clip_of(r, "jump"), ValueError, r"label str of video \d+: give a whole number"),
        (lambda r: clip_of(r, None), ValueError, r"label NoneType of video \d+: give a whole"),
        (
            lambda r: clip_of(r, torch.tensor([3.0, 2.0])),
            ValueError,
            r"label of video \d+: give a vector of values from 0 to 1",
        ),
        (
            lambda r: clip_of(r, 0 if r.index else torch.ones(3)),
            ValueError,
            r"labels of shapes \[\(\), \(3,\)\]",
        ),
    ],
)
def test_what_a_dataset_got_wrong_is_named_with_its_fix(answer, error, message):
    with pytest.raises(error, match=message):
        first_batch(answer)


def test_labels_beyond_the_classes_are_refused_if_their_number_is_given():
    collate = partial(vcycle.collate, num_classes=3)
    with pytest.raises(ValueError, match=r"label 3 of video \d+: number the classes from 0 to 2"):
        first_batch(lambda r: clip_of(r, 3), collate=collate)
    with pytest.raises(ValueError, match=r"label of 4 classes of video \d+: give 3"):
        first_batch(lambda r: clip_of(r, torch.ones(4)), collate=collate)
    assert first_batch(lambda r: clip_of(r, 2), collate=collate).labels.unique().tolist() == [2]


def test_batches_that_something_split_or_mixed_are_refused():
    first, second = list(PlanSampler(PLAN, 12, 0))[:2]
    clips = [clip_of(request) for request in first]
    with pytest.raises(ValueError, match=r"batch of 8 clips: step 0 has 16 .*nothing split"):
        vcycle.collate(clips[:8])
    with pytest.raises(ValueError, match=r"its clips are of step 0 and step 1; .*batch_sampler"):
        vcycle.collate([*clips, *map(clip_of, second)])


def test_a_loader_that_would_break_the_plan_is_refused():
    dataset, sampler = vcycle.ClipsOf(Frames()), PlanSampler(PLAN, 12, 0)
    for wrong in ({"shuffle": True}, {"drop_last": True}, {"batch_size": 4}):
        with pytest.raises(ValueError, match="batch_sampler option is mutually exclusive"):
            DataLoader(dataset, batch_sampler=sampler, collate_fn=vcycle.collate, **wrong)
    for wrong in ({"shuffle": True}, {"sampler": sampler}):
        loader = DataLoader(dataset, collate_fn=vcycle.collate, **wrong)
        with pytest.raises(TypeError, match=r"index \w+: .*batch_sampler=vcycle.PlanSampler"):
            next(iter(loader))


def test_processes_share_out_the_views_of_an_evaluation():
    """Slices of the requests; torch's DistributedSampler makes integers of them."""
    dataset, requests = vcycle.ClipsOf(Frames()), view_requests(12, Shape(4, 32, 32), num_clips=2)
    found = [
        index
        for rank in range(2)
        for batch in DataLoader(
            dataset, sampler=requests[rank::2], batch_size=5, collate_fn=vcycle.collate
        )
        for index in batch.indices.tolist()
    ]
    assert sorted(found) == [index for index in range(12) for _ in range(2)]
    sampler = DistributedSampler(requests, 2, 0)
    with pytest.raises(TypeError, match=r"index int: .*view_requests\(...\)\[rank::world_size\]"):
        next(iter(DataLoader(dataset, sampler=sampler, collate_fn=vcycle.collate)))


def test_clips_of_checks_items_and_labels():
    request = ClipRequest(3, Shape(2, 16, 16), 7)
    with pytest.raises(ValueError, match=r"label 3 of video 3: number the classes from 0 to 2"):
        _ = vcycle.ClipsOf(Frames(), num_classes=3)[request]
    with pytest.raises(ValueError, match=r"dataset\[3\]: int; let it return the pair"):
        _ = vcycle.ClipsOf(range(12))[request]
    with pytest.raises(ValueError, match=r"dataset\[3\]: 3 values; let it return the pair"):
        _ = vcycle.ClipsOf([(0, 1, 2)] * 12)[request]
    with pytest.raises(IndexError, match=r"video 3: the dataset has 2; give PlanSampler len\(dat"):
        _ = vcycle.ClipsOf(range(2))[request]
    rate = vcycle.GridRange(Shape(2, 16, 16), 2, (18, 24), frame_rate=20)
    with pytest.raises(ValueError, match=r"frame_rate 20 of the grid range: .*vcycle.to_shape"):
        vcycle.ClipsOf(Frames(), rate)
    assert vcycle.ClipsOf(Frames())[request].pixels.shape == (2, 16, 16, 3)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (np.int64(3), torch.tensor(3)),
        (torch.tensor(3, dtype=torch.uint8), torch.tensor(3)),
        (np.array([0.0, 1.0]), torch.tensor([0.0, 1.0])),
        ([False, True], torch.tensor([0.0, 1.0])),
        (torch.tensor([0.25, 0.75]), torch.tensor([0.25, 0.75])),  # mixed classes
    ],
)
def test_labels_of_every_kind_are_the_same_by_clips_of_and_by_collate(label, expected):
    frames = Frames()[0][0]
    direct = first_batch(lambda r: (vcycle.to_shape(frames, r), label))
    wrapped = vcycle.ClipsOf([(frames, label)] * 12)
    through = next(
        iter(DataLoader(wrapped, batch_sampler=PlanSampler(PLAN, 12, 0), collate_fn=vcycle.collate))
    )
    for batch in (direct, through):
        torch.testing.assert_close(batch.labels, expected.expand(16, *expected.shape))


@pytest.mark.parametrize("label", ["jump", None, [1, 0], np.array([2]), torch.eye(4)[0]])
def test_clips_of_names_the_video_whose_label_is_none(label):
    dataset = vcycle.ClipsOf([(Frames()[0][0], label)] * 12, num_classes=3)
    with pytest.raises(ValueError, match=r"^label .* of video 3: give "):
        _ = dataset[ClipRequest(3, Shape(2, 16, 16), 7)]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_loader_resumes_within_a_step_though_its_workers_run_ahead():
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def loader(workers):
        return stateful(
            vcycle.ClipsOf(Frames()),
            batch_sampler=PlanSampler(PLAN, 12, 0, micro_batches=2),
            collate_fn=vcycle.collate,
            num_workers=workers,
        )

    expected = list(loader(0))
    for workers in (0, 2):
        first = loader(workers)
        begun = iter(first)
        for batch in expected[:3]:
            assert same(next(begun), batch)
        state = first.state_dict()
        del begun, first
        second = loader(workers)
        second.load_state_dict(state)
        rest = list(second)
        assert len(rest) == 5
        assert all(same(a, b) for a, b in zip(expected[3:], rest, strict=True))


def test_a_loader_that_pins_memory_pins_a_batch(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    batch = first_batch(clip_of)
    pinned = pin_memory(batch)  # as a DataLoader does
    assert pinned.part == batch.part
    for name in ("clips", "labels", "indices"):
        assert torch.equal(getattr(pinned, name), getattr(batch, name) + 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_pinned_batches_go_to_the_gpu():
    expected = batches(vcycle.ClipsOf(Frames()))
    pinned = batches(vcycle.ClipsOf(Frames()), num_workers=2, pin_memory=True)
    for ours, theirs in zip(expected, pinned, strict=True):
        assert theirs.clips.is_pinned()
        assert theirs.to("cuda").clips.is_cuda
        assert same(ours, theirs.to("cuda").to("cpu"))
