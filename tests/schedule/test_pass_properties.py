"""A single pass of any shapes, shares and rates: it adds up, and equals a count by hand."""

from fractions import Fraction
from itertools import accumulate, pairwise

import pytest
from hypothesis import assume, given, settings, strategies as st

from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import SQRT_HALF, LongCycle, ShortCycle
from vcycle.schedule.multigrid import Anneal, Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape

FACTORS = [0.25, 0.4, 0.5, SQRT_HALF, 0.8, 1.0]
RATES = st.sampled_from([LearningRate(0.1), LearningRate(0.1, decay="cosine", warmup_steps=40)])
ANNEALS = st.builds(
    Anneal,
    form=st.sampled_from(["linear", "cosine"]),
    share=st.none() | st.floats(0.01, 1),
    final=st.sampled_from([0.0, 0.1]),
    warmup=st.floats(0, 0.5),
)


@st.composite
def passes(
    draw: st.DrawFn,
    exponents: st.SearchStrategy[float] = st.sampled_from([0.0, 0.5, 1.0]),
    anneals: st.SearchStrategy[Anneal | None] = st.none() | ANNEALS,
) -> Plan:
    """A single pass over up to six shapes, with any shares, length and rate."""
    sizes = st.tuples(st.sampled_from(FACTORS), st.sampled_from(FACTORS))
    coarse = sorted(draw(st.lists(sizes, max_size=5)), key=lambda each: each[0] * each[1] ** 2)
    factors = (*coarse, (1.0, 1.0))
    parts = draw(st.lists(st.integers(1, 20), min_size=len(factors), max_size=len(factors)))
    steps = draw(st.integers(400, 5000))
    changes = [steps * end / sum(parts) for end in accumulate(parts[:-1])]
    near = tuple(sorted({int(change) + draw(st.integers(0, 1)) for change in changes}))
    baseline = Baseline(
        Shape(draw(st.sampled_from([8, 16])), 96, draw(st.sampled_from([96, 160]))),
        batch_size=draw(st.sampled_from([1, 8, 20])),
        steps=steps,
        num_videos=275,
        learning_rate=draw(RATES),
        stage_ends=draw(st.sampled_from([(), (200,), (100, 333), near])),
    )
    multigrid = Multigrid(
        long_cycle=LongCycle(factors, tuple(part / sum(parts) for part in parts), once=True),
        short_cycle=draw(st.none() | st.just(ShortCycle())),
        epoch_factor=draw(st.floats(0.5, 4)),
        steps=draw(st.none() | st.integers(100, 5000)),
        fine_tuning=False,
        norm_group=None,
        batch_exponent=draw(exponents),
        rate_exponent=draw(st.sampled_from([0.0, 0.5, 1.0])),
        anneal=draw(anneals),
    )
    try:
        return Plan(baseline, multigrid)
    except ValueError as error:
        assume(
            "none of the plan's is left for" not in str(error)
            and "would still rise" not in str(error)
            and "leave the fall none" not in str(error)
        )
        raise


@settings(max_examples=150, deadline=None)
@given(passes())
def test_steps_clips_and_offsets_of_a_pass_add_up(plan: Plan) -> None:
    baseline, multigrid = plan.baseline, plan.multigrid
    walked = [step.batch_size for step in plan]
    assert [step.first_sample for step in plan] == list(accumulate(walked, initial=0))[:-1]
    assert plan.num_clips == sum(walked) == plan.first_sample(len(plan))
    assert sum(phase.steps for phase in plan.phases) == len(plan) == len(walked)
    if multigrid.steps is not None:
        assert len(plan) == multigrid.steps
    else:
        target = multigrid.epoch_factor * baseline.num_clips
        assert abs(plan.num_clips - target) <= max(each.batch_size for each in plan.mini_batches())
    assert plan.phases[-1].base.shape == baseline.shape  # a run ends on the full grid
    assert all(phase.steps >= 1 for phase in plan.phases)
    assert all(phase.end_step == after.first_step for phase, after in pairwise(plan.phases))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(400, 5000),
    st.lists(st.integers(5, 20), min_size=3, max_size=3),
    st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    st.floats(0.5, 3),
)
def test_the_rate_may_drop_beside_a_change_of_shape(
    steps: int, parts: list[int], beside: tuple[float, float], epoch_factor: float
) -> None:
    """Where both round to the same step there is no phase between them; no other is left out."""
    changes = [steps * end / sum(parts) for end in accumulate(parts[:-1])]
    ends = tuple(round(end + off) for end, off in zip(changes, beside, strict=True))
    baseline = Baseline(Shape(8, 96, 96), 8, steps, 275, LearningRate(0.1), ends)
    factors = ((0.5, 0.5), (0.5, 1.0), (1.0, 1.0))
    shares = tuple(part / sum(parts) for part in parts)
    plan = Plan(baseline, Multigrid.one_pass(factors, shares, epoch_factor=epoch_factor))
    assert len({phase.base for phase in plan.phases}) == len(factors)
    assert {phase.rate_stage for phase in plan.phases} == {0, 1, 2}
    assert [phase.first_step for phase in plan.phases[1:]] == [
        phase.end_step for phase in plan.phases[:-1]
    ]
    assert abs(plan.num_clips - epoch_factor * baseline.num_clips) <= max(
        each.batch_size for each in plan.mini_batches()
    )


@settings(max_examples=150, deadline=None)
@given(passes())
def test_phases_of_a_pass_end_where_a_count_by_hand_does(plan: Plan) -> None:
    """Every step asks on its own which shape and which stage of the rate it belongs to.

    Where the clips of a run are fixed, its last phase may be some steps longer or shorter.
    """
    baseline, cycle = plan.baseline, plan.multigrid.long_cycle
    assert cycle is not None
    near = Fraction(1, 1000) if plan.multigrid.steps else 9
    drops = plan.multigrid.anneal is None and baseline.learning_rate.decay == "step"
    weights = [Fraction(repr(share)) for share in cycle.shares or ()]
    shape_ends = [sum(weights[: i + 1]) / sum(weights) for i in range(len(weights))]
    stage_ends = [Fraction(end, baseline.steps) for end in baseline.stage_ends if drops]
    steps = len(plan)
    for index in range(0, steps, max(1, steps // 200)):
        middle = Fraction(2 * index + 1, 2 * steps)  # of the step, as a share of the run
        step, phase = plan[index], plan.phases[plan[index].phase]
        place = next(i for i, end in enumerate(shape_ends) if middle < end or i == len(weights) - 1)
        if all(abs(end * steps - index - Fraction(1, 2)) > near for end in shape_ends):
            frames, side = cycle.factors[place]
            expected = plan.multigrid.rule.scale(baseline.shape, frames=frames, side=side)
            assert phase.base.shape == expected, step
        if all(abs(end * steps - index - Fraction(1, 2)) > near for end in stage_ends):
            assert phase.rate_stage == sum(end <= middle for end in stage_ends)


@settings(max_examples=100, deadline=None)
@given(passes(exponents=st.just(1.0)))
def test_batch_times_pixels_is_equation_1_to_within_half_a_baselines_batch(plan: Plan) -> None:
    baseline = plan.baseline
    for each in plan.mini_batches():
        factor, rest = divmod(each.batch_size, baseline.batch_size)
        assert rest == 0
        difference = factor * each.shape.num_pixels - baseline.shape.num_pixels
        assert abs(difference) <= each.shape.num_pixels / 2


@settings(max_examples=100, deadline=None)
@given(passes(anneals=ANNEALS))
def test_the_rate_of_a_pass_falls_only_where_it_may(plan: Plan) -> None:
    anneal = plan.multigrid.anneal
    assert anneal is not None
    full = [p for p in plan.phases if p.base == plan.phases[-1].base]
    start = full[0].first_step if anneal.share is None else (1 - anneal.share) * len(plan)
    assert plan.warmup_steps == pytest.approx(anneal.warmup * len(plan), abs=0.5000001)
    for step in plan[plan.warmup_steps :: 7]:
        peak = plan.baseline.learning_rate.base * plan.phases[step.phase].base.rate_factor
        if step.index <= start:
            assert step.learning_rate == pytest.approx(peak)
        else:
            assert anneal.final * peak <= step.learning_rate < peak
    if anneal.share is not None:  # some step falls
        last = plan[len(plan) - 1]
        peak = plan.baseline.learning_rate.base * plan.phases[last.phase].base.rate_factor
        assert last.learning_rate < peak
