"""Seconds of a plan, from timed mini-batches: with the share of the tokens that each keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from study_file import read_study
from study_timing import quickest, seconds_of
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
        }
        for number, kind in enumerate(kinds)
    ]
    found = seconds_of(config, rows)
    expected = sum(kind.steps * 100.0**number for number, kind in enumerate(kinds))
    assert found == {"seconds": expected, "decode_seconds": 400.0}
    assert seconds_of(config, rows[1:])["seconds"] is None


def test_a_mini_batch_takes_the_least_of_its_timings_in_all_methods() -> None:
    """Of one task, machine, precision and norm group."""
    study = read_study(Path(__file__).parents[2] / "benchmarks" / "study" / "proof.yaml")

    def row(method: str, seconds: float, **others: object) -> dict[str, object]:
        task = {"dataset": "isl_emergency8", "regime": "scratch", "method": method, "machine": "m"}
        kind = {"shape": "8x96x96", "token_share": 1.0, "clips": 8, "seconds": seconds}
        return {**task, **kind, "decode_seconds": seconds, **others}

    coarse = {"shape": "2x48x48", "clips": 128}  # of which the short cycle makes larger groups
    rows = [row("baseline", 3.0), row("anneal", 2.0), row("paper", 4.0)]
    rows += [row("anneal-bfloat16", 1.0), row("anneal-low-frequency", 1.5)]
    rows += [row("anneal", 0.5, machine="n"), row("anneal", 0.7, regime="sgd")]
    rows += [row("anneal", 0.9, **coarse), row("paper", 0.1, **coarse), row("pass", 0.8, **coarse)]
    found = quickest(study, rows)
    expected = [2.0, 2.0, 2.0, 1.0, 1.5, 0.5, 0.7, 0.8, 0.1, 0.8]
    assert [each["seconds"] for each in found] == expected
    assert [each["decode_seconds"] for each in found] == [each["seconds"] for each in rows]
