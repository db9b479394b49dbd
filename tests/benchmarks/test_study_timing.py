"""Seconds of a plan, from timed mini-batches: with the share of the tokens that each keeps."""

from __future__ import annotations

from dataclasses import replace

from study_timing import _quartile, seconds_of
from vcycle.config.recipes import recipe
from vcycle.config.run import Model
from vcycle.schedule.cycles import LongCycle


def test_a_mini_batch_has_the_seconds_of_its_share_of_the_tokens() -> None:
    config = replace(recipe("demo"), model=Model("video_vit_tiny"))
    multigrid = config.multigrid.with_schedule("anneal")
    factors = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0))
    cycle = LongCycle(factors, shares=(0.5, 0.25, 0.25), once=True, tokens=(0.0625, 0.25, 1.0))
    config = replace(config, multigrid=replace(multigrid, long_cycle=cycle, steps=400))
    kinds = config.plan().mini_batches()
    assert len({kind.token_share for kind in kinds}) == 3
    rows = [
        {
            "shape": str(kind.shape),
            "token_share": kind.token_share,
            "clips": kind.batch_size,
            "seconds": 100.0**number,
            "decode_seconds": 1.0,
            "first_decode_seconds": 7.0,
            "steps": 1,
        }
        for number, kind in enumerate(kinds)
    ]
    found = seconds_of(config, rows)
    expected = sum(kind.steps * 100.0**number for number, kind in enumerate(kinds))
    assert found == {"seconds": expected, "decode_seconds": 400.0 + 7.0}
    assert seconds_of(config, rows[1:])["seconds"] is None
    others = [{**row, "seconds": 0.0, "steps": 3} for row in rows]
    assert seconds_of(config, [*rows, *others])["seconds"] == expected / 4


def test_seconds_of_a_mini_batch_are_the_lower_quartile_of_its_steps() -> None:
    """What others add to some steps is no part of the method."""
    assert _quartile([5.0]) == 5.0
    assert _quartile([9.0, 2.0, 1.0, 3.0, 30.0, 3.0, 40.0]) == 2.0
