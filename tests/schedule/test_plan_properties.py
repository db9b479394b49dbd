"""Random plans: counts, clips, offsets, rates and groups add up, and equal a walk step by step."""

import math
from collections import Counter
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from vcycle.schedule import phases
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle, ShortCycle
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan, Step
from vcycle.schedule.shape import Shape, ShapeRule

factors = st.sampled_from([0.25, 0.4, 0.5, 0.5**0.5, 0.8, 1.0])
pairs = st.lists(st.tuples(factors, factors), max_size=4)


@st.composite
def long_cycles(draw: st.DrawFn) -> LongCycle:
    """Any shapes, for equal shares of the steps or others."""
    shapes = (*draw(pairs), (1.0, 1.0))
    parts = draw(st.lists(st.integers(1, 4), min_size=len(shapes), max_size=len(shapes)))
    shares = tuple(part / sum(parts) for part in parts)
    return LongCycle(shapes, draw(st.none() | st.just(shares)))


short_cycles = pairs.map(lambda near: ShortCycle(tuple(near)))
learning_rates = st.builds(
    lambda base, start, **others: LearningRate(base, warmup_start=start * base, **others),
    base=st.floats(1e-5, 10),
    start=st.floats(0.0, 1.0),
    decay=st.sampled_from(["step", "cosine"]),
    gamma=st.floats(0.1, 1.0),
    final=st.floats(0.0, 0.5),
    warmup_steps=st.integers(0, 200),
) | st.builds(LearningRate, base=st.floats(1e-5, 10), decay=st.just("one-cycle"))


@st.composite
def baselines(draw: st.DrawFn) -> Baseline:
    steps = draw(st.integers(300, 3000))
    gaps = draw(st.lists(st.integers(60, 600), min_size=draw(st.integers(0, 3)), max_size=3))
    ends = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    size = st.sampled_from([64, 96, 160, 224])
    return Baseline(
        Shape(draw(st.sampled_from([8, 16, 24, 32])), draw(size), draw(size)),
        batch_size=draw(st.sampled_from([4, 8, 20, 64])),
        steps=steps,
        num_videos=draw(st.integers(1, 10_000)),
        learning_rate=draw(learning_rates),
        stage_ends=tuple(end for end in ends if end < steps - 60),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    baseline = draw(baselines())
    multigrid = Multigrid(
        long_cycle=draw(st.none() | long_cycles()),
        short_cycle=draw(st.none() | short_cycles),
        epoch_factor=draw(st.floats(0.5, 3)),
        steps=draw(st.none() | st.integers(200, 3000)),
        fine_tuning=baseline.num_stages > 1 and draw(st.booleans()),
        norm_group=draw(st.sampled_from([None, 2, 4])),
        batch_exponent=draw(st.sampled_from([0.0, 0.5, 1.0])),
        rate_exponent=draw(st.sampled_from([0.0, 0.5, 1.0])),
        rule=ShapeRule(frame_multiple=draw(st.sampled_from([1, 2])), side_multiple=4),
    )
    try:
        return Plan(baseline, multigrid)
    except ValueError as error:
        assume("none of the plan's is left for" not in str(error))
        raise


@cache
def nearest(size: int, factor: float, multiple: int) -> int:
    """The multiple nearest to a size times a factor, of two the larger."""
    exact = size * Fraction(str(factor))
    return max(range(0, size + 1, multiple), key=lambda near: (-abs(near - exact), near))


def scaled(plan: Plan, frames: float, side: float) -> Shape:
    """A baseline's shape times factors, each size to the nearest multiple, of two the larger."""
    shape = plan.baseline.shape
    return Shape(
        nearest(shape.frames, frames, plan.multigrid.rule.frame_multiple),
        nearest(shape.height, side, 4),
        nearest(shape.width, side, 4),
    )


@cache
def times_more(batch_exponent: float, coarse: Shape, fine: Shape) -> int:
    """(T H W / t h w)^p to the nearest whole number of at least 1, in exact arithmetic."""
    if batch_exponent == 0:
        return 1
    power = {1.0: 1, 0.5: 2}[batch_exponent]
    ratio = Fraction(fine.num_pixels, coarse.num_pixels)
    times = 1
    while (times + Fraction(1, 2)) ** power <= ratio:
        times += 1
    return times


def walk(plan: Plan) -> list[Step]:
    """Every step one after the other from the rules of section 3.2; phase lengths are given."""
    baseline, multigrid = plan.baseline, plan.multigrid
    long_factors = multigrid.long_cycle.factors if multigrid.long_cycle else ((1.0, 1.0),)
    short_factors = multigrid.short_cycle.factors if multigrid.short_cycle else ()
    cycles = len(long_factors) > 1 or len(short_factors) > 0
    lengths = iter(phase.steps for phase in plan.phases)
    steps: list[Step] = []
    sample = number = 0
    for stage in range(baseline.num_stages):
        fine_tuning = multigrid.fine_tuning and cycles and stage == baseline.num_stages - 1
        rows = [(stage - 1, (1.0, 1.0)), (stage, (1.0, 1.0))] if fine_tuning else []
        for rate_stage, (frames, side) in rows or [(stage, pair) for pair in long_factors]:
            base = scaled(plan, frames, side)
            base_factor = times_more(multigrid.batch_exponent, base, baseline.shape)
            for _ in range(next(lengths)):
                near = (*short_factors, (1.0, 1.0))[len(steps) % (len(short_factors) + 1)]
                shape = scaled(plan, min(frames, near[0]), min(side, near[1]))
                factor = times_more(multigrid.batch_exponent, shape, baseline.shape)
                wanted = times_more(multigrid.batch_exponent, shape, base)
                growth = max(k for k in range(1, wanted + 1) if factor % k == 0)
                batch_size = baseline.batch_size * factor
                rate = baseline.learning_rate.at(stage=rate_stage, progress=len(steps) / len(plan))
                group = multigrid.norm_group
                steps.append(
                    Step(
                        index=len(steps),
                        phase=number,
                        shape=shape,
                        batch_size=batch_size,
                        learning_rate=rate * base_factor**multigrid.rate_exponent,
                        norm_group=None if group is None else group * growth,
                        first_sample=sample,
                    )
                )
                sample += batch_size
            number += 1
    assert next(lengths, None) is None
    return steps


@settings(max_examples=60, deadline=None)
@given(plans())
def test_every_step_equals_a_walk(plan: Plan) -> None:
    steps, walked = list(plan), walk(plan)
    assert len(plan) == len(walked)
    for step, expected in zip(steps, walked, strict=True):
        if step.index < plan.warmup_steps:
            continue  # a rate of its own, tested below
        # Of so many steps, pytest.approx would take most of the time.
        assert math.isclose(
            step.learning_rate, expected.learning_rate, rel_tol=1e-12, abs_tol=1e-12
        )
    compared = [
        (step.index, step.phase, step.shape, step.batch_size, step.norm_group, step.first_sample)
        for step in steps
    ]
    assert compared == [
        (step.index, step.phase, step.shape, step.batch_size, step.norm_group, step.first_sample)
        for step in walked
    ]
    assert plan.num_clips == sum(step.batch_size for step in walked)
    assert plan.first_sample(len(plan)) == plan.num_clips
    # A shape has one batch, whichever base shape it is visited from.
    assert len({(step.shape, step.batch_size) for step in walked}) == len(plan.shapes)


@settings(max_examples=60, deadline=None)
@given(plans(), st.data())
def test_mini_batches_are_counted(plan: Plan, data: st.DataObject) -> None:
    first_step = data.draw(st.integers(0, len(plan)))
    counts = Counter((s.shape, s.batch_size, s.norm_group) for s in plan[first_step:])
    found = plan.mini_batches(first_step=first_step)
    assert {(each.shape, each.batch_size, each.norm_group): each.steps for each in found} == counts
    assert len(found) == len(counts)
    pixels = [each.shape.num_pixels for each in found]
    assert pixels == sorted(pixels)
    assert set(plan.shapes) == {step.shape for step in plan}


@settings(max_examples=150, deadline=None)
@given(plans())
def test_clips_steps_and_groups_add_up(plan: Plan) -> None:
    baseline, multigrid = plan.baseline, plan.multigrid
    if multigrid.steps is None:
        target = multigrid.epoch_factor * baseline.num_clips
        assert abs(plan.num_clips - target) <= max(each.batch_size for each in plan.mini_batches())
    else:
        assert len(plan) == multigrid.steps
    for phase, after in pairwise(plan.phases):
        assert phase.end_step == after.first_step
        assert phase.end_sample == after.first_sample
    stages = [[p for p in plan.phases if p.stage == n] for n in range(baseline.num_stages)]
    ends = (*baseline.stage_ends, baseline.steps)
    for in_stage, (start, end) in zip(stages, pairwise((0, *ends)), strict=True):
        counts = [phase.steps for phase in in_stage]
        assert min(counts) >= 1
        shares = [1 / len(counts)] * len(counts)
        if in_stage[0].kind == "cycle" and multigrid.long_cycle and multigrid.long_cycle.shares:
            shares = list(multigrid.long_cycle.shares)
        for count, part in zip(counts, shares, strict=True):
            assert abs(count - part * sum(counts)) < 1 + 1e-6
        share = len(plan) * (end - start) / baseline.steps
        assert abs(sum(counts) - share) <= (1 if multigrid.steps else 10)
    for base in {phase.base for phase in plan.phases}:
        for short in base.short_cycle:
            assert short.batch_size % plan.baseline.batch_size == 0
            assert short.norm_group is None or short.batch_size % short.norm_group == 0


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2_000, 200_000),
    st.lists(st.floats(0.1, 1.0), min_size=2, max_size=5),
    st.floats(0.5, 3),
    st.sampled_from([8, 16, 512]),
)
def test_the_papers_cycles_hit_the_clips_to_within_one_baseline_batch(
    steps: int, shares: list[float], epoch_factor: float, batch_size: int
) -> None:
    ends = [round(steps * sum(shares[: i + 1]) / sum(shares)) for i in range(len(shares) - 1)]
    baseline = Baseline(
        Shape(32, 224, 224), batch_size, steps, 240_000, LearningRate(0.1), tuple(ends)
    )
    plan = Plan(baseline, Multigrid(epoch_factor=epoch_factor))
    assert abs(plan.num_clips - epoch_factor * baseline.num_clips) <= batch_size


@pytest.mark.parametrize(("num_stages", "steps"), [(50, 5_000), (200, 20_000), (1_000, 1_000_007)])
def test_many_stages(num_stages: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As rounded as they are, the clips come out; and few phases are tried for it."""
    tried = 0
    share_out = phases.phases_of_steps

    def counted(*arguments: Any, **options: Any) -> tuple[phases.Phase, ...]:
        nonlocal tried
        found = share_out(*arguments, **options)
        tried += len(found)
        return found

    monkeypatch.setattr(phases, "phases_of_steps", counted)
    ends = tuple(steps * stage // num_stages for stage in range(1, num_stages))
    baseline = Baseline(Shape(32, 224, 224), 64, steps, 1_000, LearningRate(0.1), ends)
    plan = Plan(baseline, Multigrid())
    assert abs(plan.num_clips - 1.5 * baseline.num_clips) <= max(
        each.batch_size for each in plan.mini_batches()
    )
    assert tried < 60_000


@settings(max_examples=60, deadline=None)
@given(plans())
def test_warmup_is_a_line_of_the_baselines_clips(plan: Plan) -> None:
    rate, count = plan.baseline.learning_rate, plan.warmup_steps
    budget = rate.warmup_steps * plan.baseline.batch_size
    budget *= min(1, plan.num_clips / plan.baseline.num_clips)
    if count < len(plan) - 1:
        assert plan.first_sample(count) >= math.floor(budget)
    if count == 0:
        assert rate.warmup_steps == 0 or budget < 1
        return
    assert plan.first_sample(count - 1) < budget
    rates = [step.learning_rate for step in plan[: count + 1]]
    assert rates[0] == pytest.approx(min(rate.warmup_start, rates[-1]))
    assert rates == pytest.approx(
        [rates[0] + (rates[-1] - rates[0]) * i / count for i in range(count + 1)]
    )


@settings(max_examples=30, deadline=None)
@given(plans(), st.integers(-4000, 4000))
def test_look_up_outside_a_plan(plan: Plan, index: int) -> None:
    if -len(plan) <= index < len(plan):
        assert plan[index] == plan[index % len(plan)]
    else:
        with pytest.raises(IndexError, match=f"the plan has {len(plan)} steps"):
            plan[index]
    if 0 <= index < len(plan):
        assert plan.first_sample(index) == plan[index].first_sample
    elif index != len(plan):
        with pytest.raises(IndexError, match=f"the plan has {len(plan)} steps"):
            plan.first_sample(index)
