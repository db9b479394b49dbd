"""The sampler's contract: random access, every epoch a permutation, any split the same trajectory.

The plans here are drawn by hypothesis: any batch sizes, any shapes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset

from tests.data.plans import FakePlan, FakeStep
from vcycle.data.randomness import indexed_generator
from vcycle.data.request import ClipRequest, StepPart
from vcycle.data.sampler import PlanSampler, clip_requests, video_indices, view_requests
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape


@st.composite
def plans(draw):
    """Up to 12 steps whose batches are multiples of 8."""
    steps, first = [], 0
    for _ in range(draw(st.integers(1, 12))):
        size = 8 * draw(st.integers(1, 6))
        side = draw(st.sampled_from([32, 45, 64]))
        steps.append(FakeStep(Shape(draw(st.integers(1, 8)), side, side), size, first))
        first += size
    return FakePlan(steps)


seeds = st.integers(0, 2**63)
num_videos = st.integers(1, 50)


@given(plans(), num_videos, seeds)
def test_every_epoch_shows_every_video_once(plan, n, seed):
    requests = list(itertools.chain(*PlanSampler(plan, n, seed)))
    assert len(requests) == sum(step.batch_size for step in plan)
    for epoch in range(len(requests) // n):
        assert sorted(r.index for r in requests[epoch * n : (epoch + 1) * n]) == list(range(n))
    assert len({r.seed for r in requests}) == len(requests)


@given(plans(), num_videos, seeds, st.data())
def test_resuming_at_any_step_continues_the_same_run(plan, n, seed, data):
    first_step = data.draw(st.integers(0, len(plan)))
    whole = list(PlanSampler(plan, n, seed))
    resumed = PlanSampler(plan, n, seed, first_step=first_step)
    assert list(resumed) == whole[first_step:]
    assert len(resumed) == len(plan) - first_step


def test_a_state_is_of_one_run_and_continues_it_once():
    plan = FakePlan([FakeStep(Shape(4, 32, 32), 8, 8 * index) for index in range(3)])
    sampler = PlanSampler(plan, 12, 0)
    whole = list(sampler)
    next(iter(sampler))
    resumed = PlanSampler(plan, 12, 0)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == whole[1:]
    assert list(resumed) == whole
    with pytest.raises(ValueError, match="seed 1: the state to resume from has 0"):
        PlanSampler(plan, 12, 1).load_state_dict(sampler.state_dict())


def test_a_state_between_steps_goes_on_with_other_micro_batches():
    plan = FakePlan([FakeStep(Shape(4, 32, 32), 8, 8 * index) for index in range(3)])
    sampler = PlanSampler(plan, 12, 0, micro_batches=2)
    batches, halves = iter(sampler), PlanSampler(plan, 12, 0, micro_batches=4)
    assert [next(batches)[0].part.micro_batch for _ in range(2)] == [0, 1]
    halves.load_state_dict(sampler.state_dict())
    assert list(halves) == list(PlanSampler(plan, 12, 0, micro_batches=4, first_step=1))
    next(batches)
    with pytest.raises(ValueError, match="micro_batches 4: the state is within a step, after 1 of"):
        halves.load_state_dict(sampler.state_dict())


def test_a_state_of_another_plan_of_as_many_clips_is_refused():
    baseline = Baseline(Shape(8, 64, 64), 8, 100, 100, LearningRate(0.1), (50,))
    state = PlanSampler(Plan(baseline, Multigrid()), 100, 0).state_dict()
    smaller = Plan(replace(baseline, shape=Shape(8, 32, 32)), Multigrid())
    assert (smaller.num_clips, len(smaller)) == (state["clips"], state["steps"])
    with pytest.raises(ValueError, match="state: it is of another plan of as many steps and clips"):
        PlanSampler(smaller, 100, 0).load_state_dict(state)


def same(request: ClipRequest) -> ClipRequest:
    """A request without the part of the batch that it is in."""
    return replace(request, part=None)


@given(plans(), num_videos, seeds, st.sampled_from([(1, 4), (2, 2), (4, 1), (2, 1), (1, 2)]))
def test_ranks_and_micro_batches_are_parts_of_one_global_batch(plan, n, seed, counts):
    world_size, micro_batches = counts
    whole = list(PlanSampler(plan, n, seed))
    ranks = [
        list(PlanSampler(plan, n, seed, rank=r, world_size=world_size, micro_batches=micro_batches))
        for r in range(world_size)
    ]
    assert all(len(lists) == len(plan) * micro_batches for lists in ranks)
    for i, batch in enumerate(whole):
        parts = [lists[i * micro_batches + m] for m in range(micro_batches) for lists in ranks]
        assert [same(r) for r in itertools.chain(*parts)] == [same(r) for r in batch]
        assert len({len(part) for part in parts}) == 1


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=50), num_videos, seeds)
def test_access_is_random_and_independent_of_company(positions, n, seed):
    """Brute force: each position alone, from the permutation of its own epoch."""
    together = video_indices(np.array(positions), seed=seed, num_videos=n)
    for position, index in zip(positions, together, strict=True):
        order = indexed_generator(seed, "shuffle", position // n).permutation(n)
        assert order[position % n] == index


@given(seeds)
def test_a_different_seed_or_epoch_is_a_different_order(seed):
    n = 50
    a, b = (video_indices(np.arange(n), seed=s, num_videos=n) for s in (seed, seed + 1))
    c = video_indices(np.arange(n, 2 * n), seed=seed, num_videos=n)
    assert not np.array_equal(a, b)
    assert not np.array_equal(a, c)


def part_of(**fields) -> StepPart:
    """All of a step of eight clips."""
    step = FakeStep(Shape(4, 32, 32), 8, 0)
    return StepPart(step, FakePlan([step]).baseline, **fields)


@given(seeds)
def test_a_different_seed_or_purpose_has_seeds_of_its_own(seed):
    one, other = (
        {request.seed for request in clip_requests(part_of(seed=s), num_videos=50)}
        for s in (seed, seed + 1)
    )
    drawn = [one, other]
    drawn += [set(part_of(seed=seed).seeds(p).tolist()) for p in ("dropout", "mix", "erase")]
    assert len(set.union(*drawn)) == 8 * len(drawn)


def test_golden_values():
    """A change of these changes every run that people have on disk."""
    indices = video_indices(np.arange(12), seed=7, num_videos=6)
    assert indices.tolist() == [0, 4, 2, 5, 3, 1, 0, 4, 5, 3, 2, 1]
    part = part_of(seed=7)
    first, *_ = clip_requests(part, num_videos=6)
    assert first.seed == 10424027426814557249
    assert part.seeds("mix")[0] == 1812593865267314137


def test_the_shape_travels_with_the_request():
    step = FakeStep(Shape(4, 32, 32), 8, 16)
    part = StepPart(step, FakePlan([step]).baseline)
    requests = clip_requests(part, num_videos=100)
    assert {request.shape for request in requests} == {step.shape}
    assert {request.part for request in requests} == {part}
    assert {request.view for request in requests} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank 2: count from 0 to below world_size 2"),
        ({"first_step": 3}, "first_step 3: give 0 to 2"),
        ({"micro_batches": 0}, "micro_batches 0: give at least 1"),
        ({"world_size": 3}, "batch size 16: 3 processes x 1 micro-batches"),
        ({"world_size": 4, "micro_batches": 8}, "batch size 16: 4 processes x 8 micro-batches"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments, message):
    plan = FakePlan([FakeStep(Shape(4, 32, 32), 16, 0), FakeStep(Shape(4, 32, 32), 64, 16)])
    with pytest.raises(ValueError, match=message):
        PlanSampler(plan, 10, 0, **arguments)
    with pytest.raises(ValueError, match="num_videos 0: give at least 1"):
        PlanSampler(plan, 0, 0)
    with pytest.raises(TypeError, match="rank '1': give a whole number"):
        PlanSampler(plan, 10, 0, rank="1", world_size="2")
    with pytest.raises(TypeError, match="world_size '2': give a whole number"):
        PlanSampler(plan, 10, 0, rank=1, world_size="2")


def test_the_largest_batch_is_that_of_most_pixels_of_one_process():
    plan = FakePlan([FakeStep(Shape(4, 32, 32), 16, 0), FakeStep(Shape(2, 40, 64), 24, 16)])
    assert PlanSampler(plan, 12, 0).largest_batch_bytes == 3 * 2 * 40 * 64 * 24
    half = PlanSampler(plan, 12, 0, rank=0, world_size=2, micro_batches=4)
    assert half.largest_batch_bytes == 3 * 2 * 40 * 64 * 3


def test_a_real_plan_drives_it():
    baseline = Baseline(
        Shape(8, 64, 64),
        batch_size=16,
        steps=300,
        num_videos=100,
        learning_rate=LearningRate(0.1),
        stage_ends=(100, 200),
    )
    plan = Plan(baseline, Multigrid())
    sampler = PlanSampler(plan, 100, seed=0, world_size=2, rank=1)
    lists = list(sampler)
    assert len(lists) == len(sampler) == len(plan)
    for step, requests in zip(plan, lists, strict=True):
        assert len(requests) == step.batch_size // 2
        assert {request.shape for request in requests} == {step.shape}
    resumed = PlanSampler(plan, 100, seed=0, world_size=2, rank=1, first_step=len(plan) - 2)
    assert list(resumed) == lists[-2:]


def test_views_are_all_there_once_in_order():
    requests = view_requests(3, Shape(8, 64, 64), num_clips=2, num_crops=3)
    assert [r.index for r in requests] == [i for i in range(3) for _ in range(6)]
    assert len({(r.index, r.view) for r in requests}) == 18
    with pytest.raises(ValueError, match="num_clips 0: give at least 1"):
        view_requests(3, Shape(8, 64, 64), num_clips=0)


def test_a_dataset_in_place_of_its_length_is_refused():
    plan = FakePlan([FakeStep(Shape(4, 32, 32), 8, 0)])
    with pytest.raises(TypeError, match=r"num_videos list: give len\(dataset\)"):
        PlanSampler(plan, [1, 2], 0)
    assert len(next(iter(PlanSampler(plan, np.int64(2), 0)))) == 8


def test_a_runs_number_is_of_what_it_is_made_of():
    """A checkpoint holds it: what changes it makes runs unable to go on."""
    rate = LearningRate(0.1, decay="cosine", warmup_steps=3)
    baseline = Baseline(Shape(8, 64, 64), 8, 1000, 100, rate, (500,))

    def number(baseline, **changes):
        plan = Plan(baseline, replace(Multigrid(), **changes))
        return next(iter(PlanSampler(plan, 100, 0)))[0].part.run

    assert number(baseline) == 160730472748599
    last_digit = replace(rate, base=math.nextafter(0.1, 1))
    assert number(replace(baseline, learning_rate=last_digit)) == number(baseline)
    late = replace(baseline, learning_rate=replace(rate, warmup_start=0.05))
    single = replace(baseline, learning_rate=replace(rate, base=np.float32(0.1)))
    found = {number(baseline), number(late), number(single), number(baseline, rate_exponent=0.5)}
    assert len(found) == 4


@pytest.mark.parametrize(
    "wrap",
    [list, lambda items: Subset(items, [0, 1]), lambda items: ConcatDataset([items, items])],
    ids=["list", "Subset", "ConcatDataset"],
)
def test_a_dataset_of_integers_is_told_what_to_do(wrap):
    plan = FakePlan([FakeStep(Shape(4, 32, 32), 2, 0)])
    sampler = PlanSampler(plan, 2, 0)
    with pytest.raises(TypeError, match=r"the dataset takes integers; .*vcycle.ClipsOf\(dataset\)"):
        next(iter(DataLoader(wrap([0, 1]), batch_sampler=sampler, collate_fn=list)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"first_step": 1.0}, "first_step 1.0: give a whole number"),
        ({"micro_batches": 2.0}, "micro_batches 2.0: give a whole number"),
    ],
)
def test_what_is_no_whole_number_is_refused(arguments, message):
    plan = FakePlan([FakeStep(Shape(4, 32, 32), 16, 0)])
    with pytest.raises(TypeError, match=message):
        PlanSampler(plan, 10, 0, **arguments)
    with pytest.raises(TypeError, match=r"plan Baseline: give a vcycle\.Plan"):
        PlanSampler(plan.baseline, 10, 0)


def test_equal_plans_are_one_plan() -> None:
    """Files hold 2.0 where a program says 2."""
    baseline = Baseline(Shape(8, 32, 32), 4, 60, 24, LearningRate(2), (30,))
    other = Baseline(Shape(8, 32, 32), 4, 60, 24, LearningRate(2.0), (30,))
    plans = [
        Plan(each, Multigrid(norm_group=4, epoch_factor=factor))
        for each, factor in ((baseline, 2), (other, 2.0))
    ]
    assert plans[0] == plans[1]
    first, second = (next(iter(PlanSampler(plan, 24, 0)))[0].part.run for plan in plans)
    assert first == second
