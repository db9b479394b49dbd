"""Phases that keep a share of the tokens: equation 1 counts those, and a run ends with all."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from vcycle.config.compute import compute
from vcycle.config.recipes import scratch
from vcycle.config.run import Model, RunConfig
from vcycle.report.plan_table import plan_table
from vcycle.schedule import cost
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.cycles import LongCycle, ShortCycle
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape, ShapeRule, kept_tokens

BASELINE = Baseline(Shape(8, 96, 96), 8, 1_000, 275, LearningRate(0.01))
ONLY_TOKENS = LongCycle(((1.0, 1.0),) * 3, tokens=(0.25, 0.5, 1.0), once=True)
TUBELETS = ShapeRule(frame_multiple=2, side_multiple=16)


def planned(cycle: LongCycle, **changes: object) -> Plan:
    given = Multigrid(
        long_cycle=cycle, short_cycle=None, fine_tuning=False, norm_group=None, rule=TUBELETS
    )
    return Plan(BASELINE, replace(given, **changes))  # type: ignore[arg-type]


def test_tokens_alone_by_hand() -> None:
    plan = planned(ONLY_TOKENS)
    rows = [(phase.base.token_share, phase.base.batch_size) for phase in plan.phases]
    assert rows == [(0.25, 32), (0.5, 16), (1.0, 8)]
    assert plan.shapes == (BASELINE.shape,)
    assert plan.drops_tokens
    assert plan.clip_kinds == tuple((BASELINE.shape, share) for share in (0.25, 0.5, 1.0))
    kinds = [(each.token_share, each.batch_size, each.steps) for each in plan.mini_batches()]
    assert kinds == [(p.base.token_share, p.base.batch_size, p.steps) for p in plan.phases]
    assert [plan[0].token_share, plan[-1].token_share] == [0.25, 1.0]
    assert [phase["token_share"] for phase in plan.to_dict()["phases"]] == [0.25, 0.5, 1.0]
    assert [phase.base.rate_factor for phase in plan.phases] == [4.0, 2.0, 1.0]


@settings(max_examples=60, deadline=None)
@given(
    shares=st.lists(st.floats(0.05, 1), min_size=1, max_size=4),
    sides=st.lists(st.sampled_from([0.5, 0.75, 1.0]), min_size=4, max_size=4),
    exponent=st.sampled_from([0.5, 1.0]),
    short=st.booleans(),
)
def test_batches_are_equation_1_of_the_tokens_kept(
    shares: list[float], sides: list[float], exponent: float, short: bool
) -> None:
    factors = (*((0.5, side) for side in sorted(sides[: len(shares)])), (1.0, 1.0))
    cycle = LongCycle(factors, tokens=(*shares, 1.0), once=True)
    short_cycle = ShortCycle() if short else None
    plan = planned(cycle, batch_exponent=exponent, short_cycle=short_cycle)
    full = BASELINE.shape.num_pixels
    for kind in plan.mini_batches():
        wanted = (full / (kind.shape.num_pixels * kind.token_share)) ** exponent
        assert abs(kind.batch_size / BASELINE.batch_size - wanted) <= 0.5 + 1e-9
    last = plan.phases[-1].base
    assert (last.shape, last.token_share) == (BASELINE.shape, 1.0)
    counts = {(each.shape, each.batch_size, each.token_share): 0 for each in plan.mini_batches()}
    for step in plan:
        counts[step.shape, step.batch_size, step.token_share] += 1
    assert all(counts.values())
    pixels = sum(step.batch_size * step.shape.num_pixels * step.token_share for step in plan)
    assert cost.pixels(plan).plan == pytest.approx(pixels)


def test_the_paper_keeps_all_tokens() -> None:
    plan = Plan(replace(BASELINE, stage_ends=(400, 700)), Multigrid())
    assert not plan.drops_tokens
    assert {each.token_share for each in plan.mini_batches()} == {1.0}


def test_the_full_clip_is_a_kind_though_no_step_has_it() -> None:
    few = replace(BASELINE, steps=2)
    plan = Plan(few, Multigrid(long_cycle=None, fine_tuning=False, epoch_factor=1.0))
    assert BASELINE.shape not in plan.shapes
    assert plan.clip_kinds == (*((shape, 1.0) for shape in plan.shapes), (BASELINE.shape, 1.0))


def test_an_anneal_falls_only_with_all_tokens() -> None:
    anneal = Multigrid.named("anneal")
    plan = planned(ONLY_TOKENS, anneal=anneal.anneal)
    falls = [i for i in range(101, len(plan)) if plan[i].learning_rate < plan[i - 1].learning_rate]
    assert plan.anneal_start == plan.phases[-1].first_step / len(plan)
    assert [plan[i].token_share for i in falls].count(1.0) >= len(falls) - 1


def test_the_last_shapes_keep_their_tokens() -> None:
    assert ONLY_TOKENS.last(2).tokens == (0.5, 1.0)


@pytest.mark.parametrize(("count", "share", "kept"), [(144, 0.25, 36), (9, 0.5, 5), (4, 0.01, 1)])
def test_at_least_one_token_is_kept(count: int, share: float, kept: int) -> None:
    assert kept_tokens(count, share) == kept


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ((0.5, 0.5), "long_cycle.tokens [0.5, 0.5]: a run ends with all tokens; make 1 the last"),
        ((1.5, 1.0), "give a share above 0 and at most 1 for each of 2 shapes, or null"),
        ((0.0, 1.0), "give a share above 0 and at most 1 for each of 2 shapes, or null"),
        ((1.0,), "give a share above 0 and at most 1 for each of 2 shapes, or null"),
    ],
)
def test_shares_that_are_none(tokens: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        LongCycle(((0.5, 0.5), (1.0, 1.0)), tokens=tokens)


def test_steps_are_measured_for_each_share() -> None:
    plan = planned(ONLY_TOKENS)
    rows = [
        {"shape": "8x96x96", "clips": clips, "seconds": clips / 8, "bytes": 10.0 * clips}
        | ({} if share == 1 else {"token_share": share})
        for share, clips in ((0.25, 32), (0.5, 16), (1.0, 8))
    ]
    steps = cost.measured_steps(rows)
    by_hand = sum(step.batch_size / 8 for step in plan)
    assert cost.seconds(plan, steps) == cost.Cost(by_hand, BASELINE.steps)
    memory = cost.batch_memory(plan, steps, available_bytes=200.0)
    assert [(row.token_share, row.fits) for row in memory] == [
        (0.25, False),
        (0.5, True),
        (1, True),
    ]
    text = plan_table(plan, {}, memory)
    assert re.search(r"8x96x96@0\.25 +0 +8x96x96@0\.25 +32 +- +16 at a time\n", text)
    with pytest.raises(ValueError, match=r"measure 8x96x96@0\.25 with 32 clips too$"):
        cost.seconds(plan, steps[1:])
    with pytest.raises(ValueError, match=r"^token_share 2 at 8x96x96: give a share above 0 and"):
        cost.measured_steps([{**rows[0], "token_share": 2}])


def test_a_configuration_counts_the_multiply_adds_of_kept_tokens() -> None:
    config = replace(
        scratch(num_videos=300),
        baseline=BASELINE,
        model=Model("video_vit_tiny"),
        multigrid=planned(ONLY_TOKENS).multigrid,
    )
    total, unit = compute(config.plan(), config.model)
    entry = config.model.entry
    assert entry is not None
    walked = sum(
        step.batch_size * (entry.clip_multiply_adds(step.shape, step.token_share, {}) or 0)
        for step in config.plan()
    )
    assert (total.plan, unit) == (walked, "multiply-adds")
    other = replace(config, model=Model("resnet3d_tiny"))
    with pytest.raises(ValueError, match=r"tokens: model resnet3d_tiny has no tokens to drop; "):
        other.plan()


def test_a_share_that_is_no_token_is_refused() -> None:
    config = scratch(num_videos=20_000, model="video_vit_tiny")
    config = replace(config, baseline=replace(config.baseline, shape=Shape(8, 96, 96)))
    factors = ((0.25, 0.5), (0.5, 0.5**0.5), (1.0, 1.0))

    def with_share(share: float) -> RunConfig:
        cycle = LongCycle(factors, shares=(0.4, 0.3, 0.3), tokens=(share, 0.25, 1.0), once=True)
        return replace(config, multigrid=replace(config.multigrid, long_cycle=cycle))

    assert with_share(0.0625).plan().drops_tokens
    with pytest.raises(
        ValueError,
        match=r"^multigrid.long_cycle.tokens 0.01: a clip of 2x48x48 has 9 tokens, and that share "
        r"of them is none; give 0.111 or more$",
    ):
        with_share(0.01).plan()
